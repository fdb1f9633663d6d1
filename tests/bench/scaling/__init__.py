"""Load traces replayed against a model of relay pods: our decisions beside the formulas of KEDA and of the HPA."""

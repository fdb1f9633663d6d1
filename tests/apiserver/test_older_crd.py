"""A new operator on a CRD of before, as after `helm upgrade`, which leaves CRDs as they are (OL-11, HP-02)."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import kubernetes.aio.client
import kubernetes.aio.config
import pytest

from outboxrelay_operator.api.crd import definition
from outboxrelay_operator.installed import InstalledSchema
from outboxrelay_operator.kube import HttpKube, Kind, KubeError
from outboxrelay_operator.observed import parse
from outboxrelay_operator.writer import Writer
from tests.testbed import Cluster
from tests.testbed.api import Api, Object
from tests.testbed.cluster_fixtures import CRD_FILE
from tests.testbed.relays import relay

STATUS: Object = {
    "observedGeneration": 1,
    "pairsReady": "0/1",
    "unrouted": 3,
    "conditions": [],
    "pairs": [
        {"name": "shop-orders-orders-123456", "ready": False, "reason": "Starting", "parked": 2, "haltedLanes": 0}
    ],
}


@pytest.fixture
def older_crd(crd: Object, cluster: Cluster, tmp_path: Path) -> Iterator[None]:
    """The CRD without some fields of the status; afterwards that of this checkout."""
    older = deepcopy(definition())
    status = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    del status["unrouted"]
    del status["pairs"]["items"]["properties"]["haltedLanes"]
    file = tmp_path / "older.json"
    file.write_text(json.dumps(older), encoding="utf-8")
    cluster.kubectl("replace", "-f", str(file))
    yield
    cluster.kubectl("replace", "-f", str(CRD_FILE))


async def test_hp_02_what_an_older_crd_holds_is_written_once_and_the_rest_is_named(
    older_crd: None, cluster: Cluster, api: Api, namespace: str
) -> None:
    """cases.md HP-02, OL-11: as after `helm upgrade`, which leaves CRDs as they are."""
    created = api.create(relay(namespace=namespace))
    requests: list[str] = []
    loader: Any = kubernetes.aio.config  # partly without annotations
    configuration = kubernetes.aio.client.Configuration()
    await loader.load_kube_config(
        config_file=str(cluster.kubeconfig), client_configuration=configuration, persist_config=False
    )
    client = kubernetes.aio.client.ApiClient(configuration)
    kube = HttpKube(client, observe=lambda verb, *_: requests.append(verb))
    try:
        installed = InstalledSchema()
        async with asyncio.timeout(60):
            # The document follows a changed CRD after a moment.
            while set(installed.missing) != {"status.unrouted", "status.pairs[].haltedLanes"}:
                await asyncio.sleep(0.2)
                installed.learn(await kube.schema())
        name = created["metadata"]["name"]
        found = await kube.get(Kind.OUTBOX_RELAY, namespace, name)
        assert found is not None
        with pytest.raises(KubeError, match="not declared in schema"):
            await Writer(kube=kube, pod="x").write(parse(found), STATUS, now=1.0)

        writer = Writer(kube=kube, pod="x", fitting=installed.fitting)
        assert await writer.write(parse(found), STATUS, now=1.0) == math.inf
        found = await kube.get(Kind.OUTBOX_RELAY, namespace, name)
        assert found is not None
        pair = {"name": "shop-orders-orders-123456", "ready": False, "reason": "Starting", "parked": 2}
        assert found["status"]["pairs"] == [pair]
        requests.clear()
        assert await writer.write(parse(found), STATUS, now=100.0) == math.inf
        assert requests == []
    finally:
        await kube.close()

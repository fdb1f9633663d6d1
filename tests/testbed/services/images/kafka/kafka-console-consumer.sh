#!/bin/sh
# As in Kafka's distribution, of which the image has the jars only.
exec broker tool org.apache.kafka.tools.consumer.ConsoleConsumer "$@"

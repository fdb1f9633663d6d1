// Runs Debezium's PostgreSQL connector with its outbox event router, and prints the records as Kafka Connect would
// write them: one JSON object a line, bytes as hexadecimal digits. Started by record.py.

import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.HeaderConverter;

public class Router {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (var reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            settings.load(reader);
        }
        CountDownLatch missing = new CountDownLatch(Integer.parseInt(arguments[1]));
        PrintStream out = new PrintStream(arguments[2], "UTF-8");
        Converter keys = make(settings.getProperty("key.converter"));
        keys.configure(Map.of(), true);
        Converter values = make(settings.getProperty("value.converter"));
        values.configure(Map.of(), false);
        HeaderConverter headers = make("org.apache.kafka.connect.storage.SimpleHeaderConverter");
        headers.configure(Map.of());
        for (String name : List.of("key.converter", "value.converter")) {
            settings.remove(name);
        }
        var engine = DebeziumEngine.create(io.debezium.engine.format.ChangeEventFormat.of(Connect.class))
            .using(settings)
            .using((success, message, error) -> {
                if (!success) {
                    System.err.println(message);
                    if (error != null) {
                        error.printStackTrace();
                    }
                    System.exit(1);
                }
            })
            .notifying((RecordChangeEvent<SourceRecord> event) -> {
                SourceRecord record = event.record();
                String topic = record.topic();
                List<String> pairs = new ArrayList<>();
                for (Header header : record.headers()) {
                    byte[] value = headers.fromConnectHeader(topic, header.key(), header.schema(), header.value());
                    pairs.add("[\"" + header.key() + "\", " + hex(value) + "]");
                }
                out.println("{\"topic\": \"" + topic + "\", \"key\": "
                    + hex(keys.fromConnectData(topic, record.keySchema(), record.key())) + ", \"value\": "
                    + hex(values.fromConnectData(topic, record.valueSchema(), record.value())) + ", \"headers\": ["
                    + String.join(", ", pairs) + "], \"partition\": " + record.kafkaPartition() + ", \"timestamp\": "
                    + record.timestamp() + "}");
                out.flush();
                missing.countDown();
            })
            .build();
        var executor = Executors.newSingleThreadExecutor();
        executor.execute(engine);
        boolean complete = missing.await(120, TimeUnit.SECONDS);
        engine.close();
        System.exit(complete ? 0 : 2);
    }

    @SuppressWarnings("unchecked")
    private static <T> T make(String name) throws Exception {
        return (T) Class.forName(name).getDeclaredConstructor().newInstance();
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? "null" : "\"" + HexFormat.of().formatHex(bytes) + "\"";
    }
}

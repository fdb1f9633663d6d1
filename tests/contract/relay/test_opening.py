"""Opening a session of PostgreSQL: what can be wrong with server, login and table, and what the session is like.

Covered: reason and remedy for each, and that no message holds a password; settings that nobody else can change; two
pairs on one table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from outboxrelay.config import Match, RelayConfig
from outboxrelay.ports import StoreError
from outboxrelay.stores.postgres import PostgresStore
from outboxrelay.stores.session import Connection, connect
from tests.contract.relay.reads import fill, ids, read, refusal
from tests.contract.relay.settings import MakeStore, relay_config
from tests.testbed.services.certificates import Authority
from tests.testbed.services.postgres import Database, LocalPostgres


def reason_of(config: RelayConfig) -> tuple[str, str]:
    error = refusal(config)
    return error.reason, error.message


def with_database(config: RelayConfig, **changes: Any) -> RelayConfig:
    return config.model_copy(update={"database": config.database.model_copy(update=changes)})


# -- what can be wrong


def test_a_wrong_password(database: Database, tmp_path: Path) -> None:
    config = relay_config(tmp_path, database=database)
    (tmp_path / "password").write_text("not-the-password")
    reason, message = reason_of(config)
    assert reason == "AuthenticationFailed"
    assert f"{database.host}:{database.port}" in message
    assert database.dbname in message
    assert "public.outbox" in message
    assert "not-the-password" not in message


def test_the_password_is_read_again_at_each_connect(database: Database, tmp_path: Path) -> None:
    config = relay_config(tmp_path, database=database)
    password = tmp_path / "password"
    password.write_text("old")
    store = PostgresStore(config)
    with pytest.raises(StoreError):
        store.open()
    password.write_text(database.password + "\n")
    store.open()
    store.close()


@pytest.mark.parametrize("which", ["username", "password"])
@pytest.mark.parametrize("content", [None, "", "\n"])
def test_missing_credentials(tmp_path: Path, which: str, content: str | None) -> None:
    config = relay_config(tmp_path)
    path = tmp_path / which
    path.unlink()
    if content is not None:
        path.write_text(content)
    reason, message = reason_of(config)
    assert reason == "CredentialsMissing"
    assert str(path) in message


def test_an_unknown_user(database: Database, tmp_path: Path) -> None:
    config = relay_config(tmp_path, database=database.as_role(user="nobody_here", password="x"))
    assert reason_of(config)[0] == "AuthenticationFailed"


def test_a_missing_database(database: Database, tmp_path: Path) -> None:
    config = with_database(relay_config(tmp_path, database=database), dbname="nowhere")
    assert reason_of(config)[0] == "DatabaseMissing"


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_an_unreachable_server(tmp_path: Path, host: str) -> None:
    config = with_database(relay_config(tmp_path), host=host)
    reason, message = reason_of(config)
    assert reason == "DatabaseUnreachable"
    assert f"{host}:1" in message


def test_a_certificate_of_another_authority(database: Database, tmp_path: Path) -> None:
    other = Authority().write(tmp_path / "other.crt")
    config = relay_config(tmp_path, database=database)
    tls = config.database.tls.model_copy(update={"ca_file": other})
    assert reason_of(with_database(config, tls=tls))[0] == "TlsFailed"


def test_a_ca_file_that_is_not_there(database: Database, tmp_path: Path) -> None:
    config = relay_config(tmp_path, database=database)
    tls = config.database.tls.model_copy(update={"ca_file": tmp_path / "missing.crt"})
    assert reason_of(with_database(config, tls=tls))[0] == "TlsFailed"


def test_a_server_without_tls(tmp_path: Path) -> None:
    with LocalPostgres(fsync=False, tls=False) as plain:
        config = relay_config(tmp_path, database=plain.superuser)
        assert reason_of(config)[0] == "TlsFailed"


def test_a_missing_table(database: Database, tmp_path: Path) -> None:
    reason, message = reason_of(relay_config(tmp_path, database=database, table={"name": "nowhere"}))
    assert reason == "TableMissing"
    assert message.startswith(f"there is no table public.nowhere in database {database.dbname} on {database.host}:")
    assert "`outboxrelay sql` prints how" in message


def test_a_view_is_no_table(database: Database, tmp_path: Path) -> None:
    database.execute("create view seen as select * from outbox")
    assert reason_of(relay_config(tmp_path, database=database, table={"name": "seen"}))[0] == "TableMissing"


@pytest.mark.parametrize("role", ["id", "key", "type", "payload", "headers", "message_id"])
def test_a_missing_column(database: Database, tmp_path: Path, role: str) -> None:
    config = relay_config(tmp_path, database=database, table={"columns": {role: "nope"}})
    reason, message = reason_of(config)
    assert reason == "ColumnMissing"
    assert "column nope" in message


def test_a_missing_route_column_matters_only_if_it_is_used(database: Database, tmp_path: Path) -> None:
    table = {"columns": {"route": "nope"}}
    store = PostgresStore(relay_config(tmp_path, database=database, table=table))
    store.open()
    store.close()
    picky = relay_config(tmp_path, database=database, table=table, match={"include": ("order",)})
    assert reason_of(picky)[0] == "ColumnMissing"


@pytest.mark.parametrize(
    ("role", "column"),
    [
        ("id", "aggregateid"),
        ("payload", "created_at"),
        ("headers", "aggregateid"),
        ("key", "payload"),
        # It would travel as the text \x6f72..., which nobody asked for.
        *((role, "raw") for role in ("type", "message_id")),
    ],
)
def test_an_unsupported_column_type(database: Database, tmp_path: Path, role: str, column: str) -> None:
    database.execute("alter table outbox add raw bytea")
    config = relay_config(tmp_path, database=database, table={"columns": {role: column}})
    reason, message = reason_of(config)
    assert reason == "ColumnUnsupported"
    assert f"column {column} has type" in message


@pytest.mark.parametrize(
    ("revoke", "remedy"),
    [
        ("revoke select on outbox from {}", "GRANT SELECT ON public.outbox"),
        ("revoke delete on outbox from {}", "GRANT DELETE ON public.outbox"),
        ("revoke usage on schema public from public, {}", "GRANT USAGE ON SCHEMA public"),
    ],
)
def test_missing_privileges_are_named_with_their_remedy(
    database: Database, tmp_path: Path, revoke: str, remedy: str
) -> None:
    role = database.relay_role()
    store = PostgresStore(relay_config(tmp_path, database=role))
    store.open()
    store.close()
    database.execute(revoke.format(role.user))
    reason, message = reason_of(relay_config(tmp_path, database=role))
    assert reason == "PermissionDenied"
    assert remedy in message


def test_privileges_on_the_columns_in_use_are_enough(database: Database, make_store: MakeStore) -> None:
    role = database.relay_role()
    database.execute(f"revoke select on outbox from {role.user}")
    database.execute(f"grant select (id, aggregateid, type, payload) on outbox to {role.user}")
    database.execute("insert into outbox (aggregatetype, aggregateid, payload) values ('order', 'k', '{}')")
    store = make_store(role)
    store.settle(ids(read(store)))
    assert database.execute("select count(*) from outbox") == [(0,)]


def test_a_read_only_server(database: Database, tmp_path: Path) -> None:
    role = database.relay_role()
    database.execute(f"alter role {role.user} set default_transaction_read_only = on")
    assert reason_of(relay_config(tmp_path, database=role))[0] == "ReadOnly"


# -- the session


def test_dv_08_nothing_is_set_in_a_session_that_is_a_poolers(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting would stay for the application that is given the server session next."""
    asked: list[str] = []
    execute = Connection.execute

    def listen(self: Connection, query: Any, *rest: Any, **options: Any) -> Any:
        asked.append(query if isinstance(query, str) else query.as_string(self))
        return execute(self, query, *rest, **options)

    monkeypatch.setattr(Connection, "execute", listen)
    connect(relay_config(tmp_path, database=database)).close()
    assert any("set_config" in each for each in asked)
    asked.clear()
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", 1)
    with pytest.raises(StoreError, match="pooler"):
        connect(relay_config(tmp_path, database=database))
    assert asked
    assert not any("set_config" in each for each in asked)


def test_settings_of_the_role_do_not_change_what_the_relay_does(database: Database, tmp_path: Path) -> None:
    role = database.relay_role()
    for setting in ("bytea_output = 'escape'", "default_transaction_isolation = 'serializable'"):
        database.execute(f"alter role {role.user} set {setting}")
    database.execute(f"alter role {role.user} set idle_session_timeout = '1s'")
    with connect(relay_config(tmp_path, database=role)) as connection:
        for name, value in (
            ("bytea_output", "hex"),
            ("transaction_isolation", "read committed"),
            ("idle_session_timeout", "0"),
        ):
            assert connection.execute("select current_setting(%s)", (name,)).fetchone() == (value,), name


def test_rr_06_the_session_says_who_it_is_and_leaves_nothing_open(database: Database, make_store: MakeStore) -> None:
    """cases.md RR-06 and hard rule 5."""
    database.execute("insert into outbox (aggregatetype, aggregateid, payload) values ('order', 'k', '{}')")
    store = make_store(database)
    query = (
        "select state, xact_start from pg_stat_activity where application_name = 'outboxrelay/orders-db-orders-0a1b2c'"
    )
    store.settle(ids(read(store)))
    assert database.execute(query) == [("idle", None)]
    assert ids(read(store)) == []
    assert database.execute(query) == [("idle", None)]


def test_the_session_notices_a_dead_peer_from_both_ends(database: Database, tmp_path: Path) -> None:
    with connect(relay_config(tmp_path, database=database)) as connection:
        for name in ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout"):
            (value,) = connection.execute("select current_setting(%s)", (name,)).fetchone() or ("0",)
            assert value not in ("0", "7200"), name
        assert int(connection.info.get_parameters()["tcp_user_timeout"]) > 0
        assert connection.info.get_parameters()["keepalives_idle"] == "5"


def test_another_pair_of_the_same_resource_is_a_conflict(database: Database, tmp_path: Path) -> None:
    """Two entries of spec.databases may reach one table; pods of the two pairs read by different rules."""
    fill(database, 4, route="order")
    fill(database, 4, route="payment")
    first = relay_config(tmp_path, database=database, match={"include": ("order",)})
    other = first.model_copy(
        update={
            "pair": first.pair.model_copy(update={"name": "orders-alias-orders-0a1b2c", "database": "alias"}),
            "match": Match(include=("payment",)),
        }
    )
    stores = [PostgresStore(first), PostgresStore(other), PostgresStore(first)]
    try:
        for store in stores:
            store.open()
        stores[0].rebalance()
        assert ids(read(stores[0])) == [1, 2, 3, 4]
        stores[2].rebalance()
        assert stores[2].members() == 2
        with pytest.raises(StoreError) as caught:
            stores[1].rebalance()
        assert caught.value.reason == "Conflict"
    finally:
        for store in stores:
            store.close()

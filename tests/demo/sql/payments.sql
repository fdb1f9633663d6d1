-- The database of the payments: run once by its owner; {relay} is the relay's login.

-- This service keeps its payloads as bytes, where the orders keep jsonb.
create table outbox (
  id            bigint generated always as identity primary key,
  aggregatetype text not null,
  aggregateid   text not null,
  type          text not null,
  payload       bytea,
  created_at    timestamptz not null default clock_timestamp()
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);

grant select, delete on outbox to {relay};

create table payments (id integer primary key, version integer not null default 0);
insert into payments (id) select generate_series(1, {accounts});

create table history (
  key          text,
  version      integer,
  digest       bytea not null,
  committed_at timestamptz not null,
  primary key (key, version)
);

create table visits (at timestamptz not null default now());

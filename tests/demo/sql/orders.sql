-- The database of the orders: run once by its owner; {relay} is the relay's login.

-- The outbox, as the guide prepares it: the default column names and a bigint identity.
create table outbox (
  id            bigint generated always as identity primary key,
  aggregatetype text not null,
  aggregateid   text not null,
  type          text not null,
  payload       jsonb,
  created_at    timestamptz not null default clock_timestamp()
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);

-- Two topics share this table; for each an index on just its rows, as `outboxrelay sql` prints it.
create index on outbox (id) where aggregatetype::text collate "C" = any (array['order']::text[]);
create index on outbox (id)
  where aggregatetype is null or aggregatetype::text collate "C" <> all (array['order']::text[]);

-- All that a relay needs.
grant select, delete on outbox to {relay};

create table orders (
  id      integer primary key,
  version integer not null default 0,
  state   text not null default 'new',
  slot    integer
);
insert into orders (id) select generate_series(1, {orders});

create table invoices (id integer primary key, version integer not null default 0);
insert into invoices (id) select generate_series(1, {orders});

-- The business row of each event, in the same transaction as its outbox row. With it what a consumer received
-- can be compared with what was committed.
create table history (
  key          text,
  version      integer,
  digest       bytea not null,        -- SHA-256 of the payload
  committed_at timestamptz not null,  -- just before the commit
  primary key (key, version)
);

-- Written first by some transactions, which draws their xid long before their outbox id.
create table visits (at timestamptz not null default now());

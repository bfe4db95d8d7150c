-- The tables and functions of a store. {schema} is its schema, {v} the hash of these texts: a changed function has another name, and
-- processes with either one share the tables. Everything runs in one transaction, under an advisory lock.
DO $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('tollgate install {schema}', 0));
    IF NOT EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = '{schema}') THEN
        CREATE SCHEMA {schema};
    END IF;
    IF NOT EXISTS (SELECT FROM pg_tables t WHERE t.schemaname = '{schema}' AND t.tablename = 'state_v1') THEN
        -- A row for each limiter. Times are microseconds; `deadline` and `gone` by the server's clock, the others later than it by
        -- `ahead`, since the clock may be set back. From `gone` on the row is as good as none; `deadline` is that instant rounded up,
        -- which changes seldom: its index is not touched by most steps.
        -- The row of kind `server` has the server's timeline, since when that is known (`at`), and at least every token of a deleted row.
        CREATE TABLE {schema}.state_v1 (
            kind text, key text, PRIMARY KEY (kind, key),
            deadline bigint NOT NULL DEFAULT 0, gone bigint NOT NULL DEFAULT 0,
            at bigint NOT NULL DEFAULT 0, ahead bigint NOT NULL DEFAULT 0, due bigint NOT NULL DEFAULT 0,
            token bigint NOT NULL DEFAULT 0, timeline integer, epoch bigint,
            -- By session. Permits: e(xpires), s(eq), g(ranted), r(eturned), a(sked), k(eeps), o(ldest), c(hannel), n: the grants that
            -- it has not seen, as [request, units, token]. Rates: e, s, h (charged), a, d(ue), c, n.
            sessions jsonb NOT NULL DEFAULT '{}',
            -- Requests that wait, in order: [session, request, need, want].
            queue jsonb NOT NULL DEFAULT '[]',
            most bigint, used bigint, frozen bigint, longest bigint,
            edition bigint, price bigint, gain bigint, brim bigint, level bigint,
            span bigint, start bigint, numbers bigint[], counts bigint[]
        ) WITH (fillfactor = 50);
        ALTER TABLE {schema}.state_v1 ALTER sessions SET STORAGE MAIN, ALTER queue SET STORAGE MAIN;
        CREATE INDEX state_v1_deadline ON {schema}.state_v1 (deadline);
        -- Emptied by the recovery from a crash, which may have lost commits that were asynchronous.
        CREATE UNLOGGED TABLE {schema}.epoch_v1 (one boolean PRIMARY KEY, since bigint NOT NULL);
        INSERT INTO {schema}.epoch_v1 VALUES (true, 0);
    END IF;
    IF NOT EXISTS (SELECT FROM pg_tables t WHERE t.schemaname = '{schema}' AND t.tablename = 'keys_v1') THEN
        -- A row for each key with legs of its own. Columns of the same names are those of `state_v1`; `due` is at most the first instant at
        -- which something in the row ends.
        CREATE TABLE {schema}.keys_v1 (
            key text PRIMARY KEY,
            deadline bigint NOT NULL DEFAULT 0, gone bigint NOT NULL DEFAULT 0,
            at bigint NOT NULL DEFAULT 0, ahead bigint NOT NULL DEFAULT 0, due bigint NOT NULL DEFAULT 0,
            timeline integer, epoch bigint, frozen bigint, longest bigint,
            -- The last answer is forgotten then.
            answered bigint,
            -- By name, what was taken of a leg, as steps.sql has it.
            taken jsonb NOT NULL DEFAULT '{}',
            -- By client: when its lease ends, and its permits by the names of legs.
            leases jsonb NOT NULL DEFAULT '{}',
            -- In order: when the place ends, its client, with how many in use there is room for it, by the names of legs that it needs,
            -- whether the client was told, and its channel.
            places jsonb NOT NULL DEFAULT '[]',
            -- By client: until when its last answer is remembered, the number of that step, and the answer.
            answers jsonb NOT NULL DEFAULT '{}'
        ) WITH (fillfactor = 50);
        ALTER TABLE {schema}.keys_v1 ALTER taken SET STORAGE MAIN, ALTER leases SET STORAGE MAIN, ALTER places SET STORAGE MAIN,
            ALTER answers SET STORAGE MAIN;
        CREATE INDEX keys_v1_deadline ON {schema}.keys_v1 (deadline);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION {schema}.micros_{v}() RETURNS bigint LANGUAGE sql AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- The timeline, which changes when another server takes over.
CREATE OR REPLACE FUNCTION {schema}.timeline_{v}() RETURNS integer LANGUAGE sql AS $$
    SELECT ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer
$$;

-- Since when this server knows all grants, by its clock; the highest token of deleted rows; and the epoch.
CREATE OR REPLACE FUNCTION {schema}.server_{v}(durable boolean, clock bigint) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    here integer := {schema}.timeline_{v}();
    since bigint; tokens bigint; crashed bigint := 0;
BEGIN
    UPDATE {schema}.state_v1 t SET timeline = here, at = clock WHERE t.kind = 'server' AND t.timeline <> here;
    -- A first server has not taken over from another.
    INSERT INTO {schema}.state_v1 (kind, key, timeline, at, deadline)
        SELECT 'server', '', here, CASE here WHEN 1 THEN 0 ELSE clock END, 9223372036854775807
        WHERE NOT EXISTS (SELECT FROM {schema}.state_v1 t WHERE t.kind = 'server') ON CONFLICT DO NOTHING;
    SELECT t.at, t.token INTO since, tokens FROM {schema}.state_v1 t WHERE t.kind = 'server';
    IF NOT durable THEN
        INSERT INTO {schema}.epoch_v1 VALUES (true, clock) ON CONFLICT DO NOTHING;
        SELECT e.since INTO crashed FROM {schema}.epoch_v1 e;
    END IF;
    RETURN ARRAY[greatest(since, crashed), tokens, crashed];
END $$;

-- What a row with permits has of the server from now on, its timeline and epoch; where these are others than before, since when the
-- server knows all grants, by its clock: one that took over, or that lost commits in a crash, may not know the last ones. Until all leases
-- that it may not know have ended it grants nothing. Then the highest token of deleted rows.
CREATE OR REPLACE FUNCTION {schema}.look_{v}(timeline integer, epoch bigint, durable boolean, clock bigint) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    here integer := {schema}.timeline_{v}();
    server bigint[]; crashed bigint; since bigint;
BEGIN
    IF NOT durable THEN
        SELECT e.since INTO crashed FROM {schema}.epoch_v1 e;
    END IF;
    IF timeline IS DISTINCT FROM here OR epoch IS DISTINCT FROM crashed OR NOT durable AND crashed IS NULL THEN
        server := {schema}.server_{v}(durable AND epoch IS NULL, clock);
        IF timeline IS DISTINCT FROM here OR epoch <> server[3] THEN
            since := server[1];
        END IF;
        crashed := CASE WHEN durable THEN NULL ELSE server[3] END;
    END IF;
    RETURN ARRAY[here, crashed, since, server[2]];
END $$;

-- Whether the commit waits until it is on disk.
CREATE OR REPLACE FUNCTION {schema}.commit_{v}(durable boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT durable THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    ELSIF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- Deletes a row. Its tokens stay known, since the clock may fall behind them at any later time.
CREATE OR REPLACE FUNCTION {schema}.forget_{v}(of_kind text, k text, last bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.state_v1 t WHERE t.kind = of_kind AND t.key = k;
    UPDATE {schema}.state_v1 t SET token = last WHERE t.kind = 'server' AND t.token < last;
END $$;

-- Deletes at most `bound` rows that are as good as none. Answers with the microseconds until the next one is, or -1.
CREATE OR REPLACE FUNCTION {schema}.purge_{v}(bound integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    clock bigint := {schema}.micros_{v}();
    old record;
BEGIN
    FOR old IN SELECT t.kind, t.key, t.token FROM {schema}.state_v1 t WHERE t.deadline <= clock ORDER BY t.deadline LIMIT bound
        FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM {schema}.forget_{v}(old.kind, old.key, old.token);
    END LOOP;
    DELETE FROM {schema}.keys_v1 t WHERE t.key = ANY (array(
        SELECT t.key FROM {schema}.keys_v1 t WHERE t.deadline <= clock ORDER BY t.deadline LIMIT 10 * bound FOR UPDATE SKIP LOCKED));
    RETURN coalesce(greatest(least((SELECT min(t.deadline) FROM {schema}.state_v1 t WHERE t.kind <> 'server'),
        (SELECT min(t.deadline) FROM {schema}.keys_v1 t)) - clock, 0), -1);
END $$;

-- A level in parts of another price, rounded up: taken tokens stay taken.
CREATE OR REPLACE FUNCTION {schema}.convert_{v}(level bigint, old bigint, new bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT least(div(level::numeric * new + old - 1, old), 2251799813685248)::bigint
$$;

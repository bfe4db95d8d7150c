-- Permits that many machines share. Carries out one sync, as `tollgate::remote::model::Permits` does.
--
-- k: the limiter; first_limit: the limit if there is none; me: the session; channel: that of its process, or '' if it does not listen;
-- requests: for each its id, need, want and whether it waits; longest: the longest time to live of any process; durable: whether the
-- commit waits until it is on disk.
-- Answers: alive, others wait, microseconds until the next sync or '', limit, used, waiting, sessions, floor, the number of own
-- requests that wait, then for each grant: request, units, token.
CREATE OR REPLACE FUNCTION {schema}.permits_{v}(
    k text, first_limit bigint, me text, channel text, seq bigint, begins boolean, ttl bigint, returned bigint, seen bigint,
    new_limit bigint, keeps boolean, ends boolean, acked bigint, oldest bigint, requests bigint[], withdrawn bigint[],
    longest bigint, durable boolean
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    s {schema}.state_v1%ROWTYPE;
    clock bigint; now bigint; last bigint; look bigint[]; fresh boolean;
    held jsonb; head jsonb; unseen jsonb; leaving text[]; told text[] := '{}'; id text;
    alive boolean := false; applies boolean := false; waited boolean; looks boolean; others boolean;
    need bigint; units bigint; free bigint; again bigint; floor bigint; other_due bigint; last_due bigint;
    members bigint; waiting bigint; mine bigint; at integer; census text[];
BEGIN
    LOOP
        SELECT * INTO s FROM {schema}.state_v1 t WHERE t.kind = 'permits' AND t.key = k FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO {schema}.state_v1 (kind, key) VALUES ('permits', k) ON CONFLICT DO NOTHING;
    END LOOP;
    clock := {schema}.micros_{v}();
    fresh := s.gone <= clock;
    IF fresh THEN
        s.sessions := '{}'; s.queue := '[]'; s.at := 0; s.ahead := 0; s.due := 0; s.timeline := NULL; s.epoch := NULL;
        s.most := first_limit; s.used := 0; s.frozen := 0; s.longest := 0;
    END IF;
    s.ahead := greatest(s.ahead, s.at - clock);
    now := clock + s.ahead;
    s.longest := greatest(s.longest, ttl, longest);

    look := {schema}.look_{v}(s.timeline, s.epoch, durable, clock);
    s.token := greatest(s.token, look[4]);
    s.frozen := greatest(s.frozen, look[3] + s.longest + s.ahead);
    s.timeline := look[1]; s.epoch := look[2];
    IF fresh THEN
        -- All tokens of former rows are lower: they are times, and the server's row has them if the clock was set back.
        s.token := greatest(s.token, now - 1);
    END IF;
    last := s.token;

    -- -1: sessions that have expired; 0: the report; then each request. What it frees is granted at once, so that those behind find less.
    FOR step IN -1 .. coalesce(array_length(requests, 1), 0) / 4 LOOP
        leaving := NULL;
        IF step = -1 THEN
            IF s.due <= now THEN
                SELECT array_agg(e.id) INTO leaving FROM jsonb_each(s.sessions) e(id, held) WHERE (e.held->>'e')::bigint <= now;
            END IF;
        ELSIF step = 0 THEN
            waited := s.queue <> '[]';
            held := s.sessions->me;
            -- It ends, or a part of it was forgotten: an answered sync, or a grant that was reported.
            IF ends OR (held->>'s')::bigint < acked OR seen > last THEN
                leaving := ARRAY[me];
                held := NULL;
            END IF;
        END IF;
        IF leaving IS NOT NULL THEN
            SELECT s.used - coalesce(sum((e.held->>'g')::bigint - (e.held->>'r')::bigint), 0) INTO s.used
                FROM jsonb_each(s.sessions) e(id, held) WHERE e.id = ANY (leaving);
            s.sessions := s.sessions - leaving;
            SELECT coalesce(jsonb_agg(q.wish ORDER BY q.n), '[]') INTO s.queue
                FROM jsonb_array_elements(s.queue) WITH ORDINALITY q(wish, n) WHERE q.wish->>0 <> ALL (leaving);
        END IF;

        IF step = 0 THEN
            alive := NOT ends AND (held IS NOT NULL OR begins);
            -- An overtaken sync does nothing.
            applies := alive AND seq > coalesce((held->>'s')::bigint, 0);
            IF applies THEN
                held := coalesce(held, '{"g": 0, "r": 0, "a": 0, "n": []}');
                s.most := coalesce(new_limit, s.most);
                unseen := held->'n';
                IF unseen <> '[]' THEN
                    SELECT coalesce(jsonb_agg(g.grant ORDER BY g.n), '[]') INTO unseen
                        FROM jsonb_array_elements(unseen) WITH ORDINALITY g("grant", n) WHERE (g.grant->>2)::bigint > seen;
                END IF;
                returned := least(greatest(returned, (held->>'r')::bigint), (held->>'g')::bigint);
                s.used := s.used - (returned - (held->>'r')::bigint);
                s.sessions := s.sessions || jsonb_build_object(me, held || jsonb_build_object('e', now + ttl, 's', seq, 'k', keeps,
                    'c', channel, 'r', returned, 'n', unseen, 'o', coalesce(oldest, (unseen->0->>2)::bigint)));
                IF withdrawn <> '{}' AND s.queue <> '[]' THEN
                    SELECT coalesce(jsonb_agg(q.wish ORDER BY q.n), '[]') INTO s.queue
                        FROM jsonb_array_elements(s.queue) WITH ORDINALITY q(wish, n)
                        WHERE NOT (q.wish->>0 = me AND (q.wish->>1)::bigint = ANY (withdrawn));
                END IF;
            END IF;
        ELSIF step > 0 THEN
            at := 4 * step - 3;
            held := s.sessions->me;
            CONTINUE WHEN requests[at] <= (held->>'a')::bigint;
            s.sessions := s.sessions || jsonb_build_object(me, held || jsonb_build_object('a', requests[at]));
            need := requests[at + 1];
            IF requests[at + 3] = 1 AND need <= s.most
                OR s.queue = '[]' AND need <= greatest(s.most - s.used, 0) AND s.frozen <= now
            THEN
                s.queue := s.queue || jsonb_build_array(jsonb_build_array(me, requests[at], need, greatest(need, requests[at + 2])));
            END IF;
        END IF;

        WHILE s.queue <> '[]' LOOP
            head := s.queue->0;
            id := head->>0;
            need := (head->>2)::bigint;
            free := greatest(s.most - s.used, 0);
            -- The limit was lowered below its need: its client is notified, and withdraws it.
            IF need > s.most THEN
                told := told || id;
            END IF;
            EXIT WHEN need > free OR s.frozen > now;
            s.queue := s.queue - 0;
            SELECT count(*) INTO members FROM jsonb_object_keys(s.sessions);
            -- Units wanted beyond the need: half an equal share at a time, for fairness.
            units := least((head->>3)::bigint, CASE members WHEN 1 THEN free ELSE greatest(s.most / (2 * members), need) END, free);
            s.used := s.used + units;
            s.token := greatest(s.token + 1, now);
            held := s.sessions->id;
            s.sessions := s.sessions || jsonb_build_object(id, held || jsonb_build_object('g', (held->>'g')::bigint + units,
                'n', held->'n' || jsonb_build_array(jsonb_build_array(head->1, units, s.token)),
                'o', coalesce((held->>'o')::bigint, s.token)));
            told := told || id;
        END LOOP;
        EXIT WHEN step = 0 AND NOT applies;
    END LOOP;

    SELECT count(*), min((e.held->>'e')::bigint), min((e.held->>'e')::bigint) FILTER (WHERE e.id <> me), max((e.held->>'e')::bigint),
        coalesce(min((e.held->>'o')::bigint), s.token + 1)
        INTO members, s.due, other_due, last_due, floor FROM jsonb_each(s.sessions) e(id, held);
    SELECT count(*), count(*) FILTER (WHERE q.wish->>0 = me), coalesce(bool_or(q.wish->>0 = me AND q.n <= 64), false)
        INTO waiting, mine, looks FROM jsonb_array_elements(s.queue) WITH ORDINALITY q(wish, n);
    IF NOT waited AND waiting > 0 THEN
        -- Sessions that keep permits without need have to return them.
        told := told || array(SELECT e.id FROM jsonb_each(s.sessions) e(id, held)
            WHERE (e.held->>'k')::boolean AND (e.held->>'g')::bigint > (e.held->>'r')::bigint);
    END IF;
    IF mine > 0 THEN
        -- Those near the front look when the next session expires, or when unknown leases have ended.
        again := least(CASE WHEN looks AND other_due > 0 THEN greatest(other_due - now, 0) END, CASE WHEN s.frozen > now THEN s.frozen - now END);
    END IF;

    PERFORM {schema}.commit_{v}(durable);
    IF members = 0 THEN
        PERFORM {schema}.forget_{v}('permits', k, s.token);
    ELSE
        s.gone := last_due - s.ahead;
        UPDATE {schema}.state_v1 t SET deadline = (s.gone / 250000 + 1) * 250000, gone = s.gone, at = now, ahead = s.ahead, due = s.due,
            token = s.token, timeline = s.timeline, epoch = s.epoch, sessions = s.sessions, queue = s.queue, most = s.most, used = s.used,
            frozen = s.frozen, longest = s.longest WHERE t.kind = 'permits' AND t.key = k;
    END IF;

    census := ARRAY[s.most, s.used, waiting, members, floor];
    FOR id, held IN SELECT e.id, e.held FROM jsonb_each(s.sessions) e(id, held) WHERE told <> '{}' AND e.id = ANY (told) AND e.id <> me
    LOOP
        IF held->>'c' <> '' THEN
            others := EXISTS (SELECT FROM jsonb_array_elements(s.queue) q(wish) WHERE q.wish->>0 <> id);
            -- The reply that a sync would get. A long one has to be asked for.
            PERFORM pg_notify(held->>'c', CASE WHEN jsonb_array_length(held->'n') > 100 THEN k || ' ' || id ELSE
                k || ' ' || id || E'\n1 ' || others::integer || ' - ' || array_to_string(census, ' ') || ' 0' ||
                coalesce((SELECT string_agg(concat(' ', g.grant->>0, ' ', g.grant->>1, ' ', g.grant->>2), '' ORDER BY g.n)
                    FROM jsonb_array_elements(held->'n') WITH ORDINALITY g("grant", n)), '') END);
        END IF;
    END LOOP;

    census := ARRAY[alive::integer::text, (alive AND waiting > mine)::integer::text, coalesce(again::text, '')] || census || mine::text;
    IF alive THEN
        census := census || array(SELECT g.grant->>i FROM jsonb_array_elements(s.sessions->me->'n') WITH ORDINALITY g("grant", n),
            generate_series(0, 2) i WHERE (g.grant->>2)::bigint > seen ORDER BY g.n, i);
    END IF;
    RETURN census;
END $$;

-- A token bucket or a window that many machines share. Carries out one sync, as `tollgate::remote::model::Rates` does.
--
-- of_kind: rate or window; rule: price, gain and brim, or limit, length of a segment and 64; edition: that of the rule; change: the new rule, or
-- null; remembered: for how long a changed rule is. The others are as for permits.
-- Answers: sessions, alive, microseconds or '', burst or limit, taken, edition or '', then the rule of that edition, waiting, whether
-- another session uses another rule, then for each grant: request, units, token.
CREATE OR REPLACE FUNCTION {schema}.rates_{v}(
    of_kind text, k text, rule bigint[], me text, channel text, seq bigint, begins boolean, ttl bigint, charged bigint, seen bigint,
    ends boolean, edition bigint, change bigint[], requests bigint[], withdrawn bigint[], remembered bigint, durable boolean
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    -- The highest level of a bucket, and the least time for earlier waiters to ask.
    MOST CONSTANT bigint := 2251799813685248;
    PACE CONSTANT bigint := 1000;
    s {schema}.state_v1%ROWTYPE;
    is_bucket boolean := of_kind = 'rate';
    clock bigint; now bigint; passed bigint; length bigint; current bigint; total bigint := 0; here integer; free bigint; bound bigint; before bigint;
    held jsonb; unseen jsonb; leaving text[]; alive boolean := false; differs boolean; waits boolean; raised boolean := false;
    id bigint; need bigint; want bigint; units bigint; wait bigint; again bigint; ahead bigint; others bigint; place integer; left_ bigint;
    members bigint; last_due bigint; gone bigint; answer text[]; other text;
BEGIN
    LOOP
        SELECT * INTO s FROM {schema}.state_v1 t WHERE t.kind = of_kind AND t.key = k FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO {schema}.state_v1 (kind, key) VALUES (of_kind, k) ON CONFLICT DO NOTHING;
    END LOOP;
    clock := {schema}.micros_{v}();
    IF s.gone <= clock THEN
        s.token := greatest(s.token, ({schema}.server_{v}(true, clock))[2]);
        s.sessions := '{}'; s.queue := '[]'; s.at := clock; s.ahead := 0; s.due := 0; s.edition := 0;
        s.price := rule[1]; s.gain := rule[2]; s.brim := rule[3]; s.level := 0;
        s.most := rule[1]; s.span := rule[2]; s.start := clock; s.numbers := '{}'; s.counts := '{}';
    ELSIF NOT is_bucket AND s.span <> rule[2] THEN
        RAISE EXCEPTION 'a window of another length is in use under `%`', k;
    END IF;
    s.ahead := greatest(s.ahead, s.at - clock);
    now := clock + s.ahead;
    passed := now - s.at;

    IF s.due <= now THEN
        SELECT array_agg(e.id) INTO leaving FROM jsonb_each(s.sessions) e(id, held) WHERE (e.held->>'e')::bigint <= now;
    END IF;
    IF ends THEN
        leaving := leaving || me;
    END IF;
    IF leaving IS NOT NULL THEN
        s.sessions := s.sessions - leaving;
        SELECT coalesce(jsonb_agg(q.seat ORDER BY q.n), '[]') INTO s.queue
            FROM jsonb_array_elements(s.queue) WITH ORDINALITY q(seat, n) WHERE q.seat->>0 <> ALL (leaving);
    END IF;

    IF is_bucket THEN
        -- Compared first, since the product of a long time is too large.
        s.level := CASE WHEN passed >= (s.level + s.gain - 1) / s.gain THEN 0 ELSE s.level - passed * s.gain END;
        differs := (s.price, s.gain, s.brim) <> (rule[1], rule[2], rule[3]);
    ELSE
        length := s.span;
        current := (now - s.start) / length;
        -- A segment counts until all of it has left the window.
        WHILE s.numbers[1] < current - 64 LOOP
            s.numbers := s.numbers[2:]; s.counts := s.counts[2:];
        END LOOP;
        here := coalesce(array_length(s.numbers, 1), 0);
        IF here = 0 OR s.numbers[here] <> current THEN
            here := here + 1;
            s.numbers := s.numbers || current;
            s.counts := s.counts || 0::bigint;
        END IF;
        FOR n IN 1 .. here LOOP
            total := total + s.counts[n];
        END LOOP;
        differs := s.most <> rule[1];
    END IF;
    differs := edition = s.edition AND differs AND s.sessions - me <> '{}';

    IF edition >= s.edition THEN
        IF is_bucket THEN
            s.level := {schema}.convert_{v}(s.level, s.price, rule[1]);
            s.price := rule[1]; s.gain := rule[2]; s.brim := rule[3];
        END IF;
        s.most := rule[1];
        s.edition := edition;
    END IF;
    bound := CASE WHEN is_bucket THEN s.brim / s.price ELSE s.most END;

    held := s.sessions->me;
    alive := NOT ends AND (held IS NOT NULL OR begins);
    IF alive AND seq > coalesce((held->>'s')::bigint, 0) THEN
        held := coalesce(held, '{"h": 0, "a": 0, "d": 0, "n": []}');
        units := greatest(charged - (held->>'h')::bigint, 0);
        unseen := held->'n';
        IF unseen <> '[]' THEN
            SELECT coalesce(jsonb_agg(g.grant ORDER BY g.n), '[]') INTO unseen
                FROM jsonb_array_elements(unseen) WITH ORDINALITY g("grant", n) WHERE (g.grant->>2)::bigint > seen;
        END IF;
        held := held || jsonb_build_object('e', now + ttl, 's', seq, 'c', channel, 'n', unseen, 'h', greatest(charged, (held->>'h')::bigint));
        -- Debt, as deep as whole numbers go.
        IF is_bucket THEN
            s.level := CASE WHEN units > MOST / s.price THEN MOST ELSE least(s.level + units * s.price, MOST) END;
        ELSE
            units := least(units, 4611686018427387903 - total);
            s.counts[here] := s.counts[here] + units;
            total := total + units;
        END IF;
        -- A change counts if its client knows the latest edition. Otherwise another change came first.
        IF change IS NOT NULL AND edition >= s.edition THEN
            before := bound;
            IF is_bucket THEN
                s.level := {schema}.convert_{v}(s.level, s.price, change[1]);
                s.price := change[1]; s.gain := change[2]; s.brim := change[3];
            END IF;
            s.most := change[1];
            s.edition := greatest(s.edition + 1, now);
            bound := CASE WHEN is_bucket THEN s.brim / s.price ELSE s.most END;
            raised := bound > before;
            -- A waiter that needs more than that is refused when it asks again, and blocks no other until then.
            SELECT coalesce(jsonb_agg(q.seat ORDER BY q.n), '[]') INTO s.queue
                FROM jsonb_array_elements(s.queue) WITH ORDINALITY q(seat, n) WHERE (q.seat->>2)::bigint <= bound;
        END IF;
        waits := false;
        FOR step IN 1 .. coalesce(array_length(requests, 1), 0) / 4 LOOP
            waits := waits OR requests[4 * step] = 1;
        END LOOP;
        IF NOT waits AND withdrawn <> '{}' AND s.queue <> '[]' THEN
            SELECT coalesce(jsonb_agg(q.seat ORDER BY q.n), '[]') INTO s.queue
                FROM jsonb_array_elements(s.queue) WITH ORDINALITY q(seat, n)
                WHERE NOT (q.seat->>0 = me AND (q.seat->>1)::bigint = ANY (withdrawn));
        END IF;
        FOR step IN 1 .. coalesce(array_length(requests, 1), 0) / 4 LOOP
            id := requests[4 * step - 3];
            CONTINUE WHEN id <= (held->>'a')::bigint;
            need := requests[4 * step - 2];
            want := greatest(requests[4 * step - 1], need);
            waits := requests[4 * step] = 1;
            -- The needs of the places before this request, and those of all other sessions.
            SELECT min(q.n) FILTER (WHERE q.seat->>0 = me) INTO place FROM jsonb_array_elements(s.queue) WITH ORDINALITY q(seat, n);
            SELECT coalesce(sum((q.seat->>2)::bigint) FILTER (WHERE NOT waits OR place IS NULL OR q.n < place), 0),
                coalesce(sum((q.seat->>2)::bigint) FILTER (WHERE q.seat->>0 <> me), 0)
                INTO ahead, others FROM jsonb_array_elements(s.queue) WITH ORDINALITY q(seat, n);
            free := CASE WHEN is_bucket THEN greatest(s.brim - s.level, 0) / s.price ELSE greatest(s.most - total, 0) END;
            wait := NULL;
            IF need + ahead <= free THEN
                units := greatest(least(want, greatest(free - others, 0)), need);
                wait := 0;
            ELSIF waits AND is_bucket THEN
                -- Tokens of the future.
                units := greatest(least(want, bound), need);
                IF units <= bound AND s.level + units * s.price <= MOST THEN
                    wait := (greatest(s.level + units * s.price - s.brim, 0) + s.gain - 1) / s.gain;
                END IF;
            END IF;
            IF wait IS NULL THEN
                IF need <= bound THEN
                    IF is_bucket THEN
                        again := (greatest(s.level - (s.brim - need * s.price), 0) + s.gain - 1) / s.gain;
                    ELSE
                        -- The oldest units leave first. It fits once the rest leaves room for it and for the needs of earlier places. Only
                        -- their bound is known: they fill a window. They have to ask first.
                        again := 0;
                        left_ := total;
                        FOR n IN 1 .. here LOOP
                            EXIT WHEN left_ <= greatest(s.most - need - ahead, 0);
                            left_ := left_ - s.counts[n];
                            again := s.start + (s.numbers[n] + 65) * length - now;
                        END LOOP;
                        IF ahead > 0 THEN
                            again := greatest(again, length, PACE);
                        END IF;
                        IF waits AND place IS NULL THEN
                            s.queue := s.queue || jsonb_build_array(jsonb_build_array(me, id, need));
                        ELSIF waits THEN
                            s.queue := jsonb_set(s.queue, ARRAY[(place - 1)::text], jsonb_build_array(me, id, need));
                        END IF;
                    END IF;
                END IF;
                EXIT;
            END IF;
            IF is_bucket THEN
                s.level := s.level + units * s.price;
            ELSE
                s.counts[here] := s.counts[here] + units;
                total := total + units;
            END IF;
            IF waits AND place IS NOT NULL THEN
                s.queue := s.queue - (place - 1);
            END IF;
            s.token := greatest(s.token + 1, now);
            held := held || jsonb_build_object('d', now + wait, 'a', id,
                'n', held->'n' || jsonb_build_array(jsonb_build_array(id, units, s.token)));
        END LOOP;
        s.sessions := s.sessions || jsonb_build_object(me, held);
    END IF;

    PERFORM {schema}.commit_{v}(durable);
    SELECT count(*), min((e.held->>'e')::bigint), coalesce(max((e.held->>'e')::bigint), 0) INTO members, s.due, last_due
        FROM jsonb_each(s.sessions) e(id, held);
    s.due := coalesce(s.due, 9223372036854775807);
    -- From then on the row is as good as new: a full bucket or an empty window, no session, and no changed rule.
    gone := greatest(last_due, CASE WHEN s.edition > 0 THEN now + remembered ELSE 0 END);
    IF is_bucket THEN
        gone := greatest(gone, now + (s.level + s.gain - 1) / s.gain);
    ELSIF total > 0 THEN
        FOR n IN 1 .. here LOOP
            IF s.counts[n] > 0 THEN
                left_ := s.numbers[n];
            END IF;
        END LOOP;
        gone := greatest(gone, s.start + (left_ + 65) * length);
    END IF;
    IF gone <= now THEN
        PERFORM {schema}.forget_{v}(of_kind, k, s.token);
    ELSE
        s.gone := gone - s.ahead;
        UPDATE {schema}.state_v1 t SET deadline = (s.gone / 250000 + 1) * 250000, gone = s.gone, at = now, ahead = s.ahead, due = s.due,
            token = s.token, sessions = s.sessions, queue = s.queue, edition = s.edition, price = s.price, gain = s.gain, brim = s.brim,
            level = s.level, most = s.most, span = s.span, start = s.start, numbers = s.numbers, counts = s.counts
            WHERE t.kind = of_kind AND t.key = k;
    END IF;
    IF raised THEN
        FOR other IN SELECT q.seat->>0 FROM jsonb_array_elements(s.queue) q(seat) WHERE q.seat->>0 <> me LOOP
            IF s.sessions->other->>'c' <> '' THEN
                PERFORM pg_notify(s.sessions->other->>'c', k || ' ' || other);
            END IF;
        END LOOP;
    END IF;

    free := CASE WHEN is_bucket THEN greatest(s.brim - s.level, 0) / s.price ELSE greatest(s.most - total, 0) END;
    IF alive AND (held->>'d')::bigint > now
        AND EXISTS (SELECT FROM jsonb_array_elements(held->'n') g("grant") WHERE (g.grant->>2)::bigint > seen)
    THEN
        again := (held->>'d')::bigint - now;
    END IF;
    answer := ARRAY[members::text, alive::integer::text, coalesce(again::text, ''), bound::text, (bound - least(free, bound))::text];
    IF alive AND s.edition > edition THEN
        answer := answer || ARRAY[s.edition, CASE WHEN is_bucket THEN s.price ELSE s.most END, coalesce(s.gain, 0), coalesce(s.brim, 0)]::text[];
    ELSE
        answer := answer || ARRAY['', '', '', ''];
    END IF;
    answer := answer || ARRAY[jsonb_array_length(s.queue)::text, differs::integer::text];
    IF alive THEN
        answer := answer || array(SELECT g.grant->>i FROM jsonb_array_elements(held->'n') WITH ORDINALITY g("grant", n),
            generate_series(0, 2) i WHERE (g.grant->>2)::bigint > seen ORDER BY g.n, i);
    END IF;
    RETURN answer;
END $$;

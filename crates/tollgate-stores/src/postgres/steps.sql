-- The rates, windows and permits of a key that many machines share. Carries out one step, as `tollgate::remote::model::KeyLegs` does: first
-- changes of reservations, corrections and a grant, then admissions, each from all legs or from none.
--
-- A leg is { price, gain, brim, level, when that was, since when it counts by this rule } of a rate, and { length of a segment, number,
-- units, ... } of a window, in order: an odd number of entries. What is reserved of a window stands beside it, under its name behind the
-- character 1: { length of a segment, when it ends, number, units, ... }.

-- The microseconds until a leg gives `n` units, without others; null when it never does. `most` is the limit of a window.
CREATE OR REPLACE FUNCTION {schema}.leg_wait_{v}(leg bigint[], n bigint, most bigint, now bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    room bigint := most - n;
BEGIN
    IF n = 0 THEN
        RETURN 0;
    ELSIF cardinality(leg) = 6 THEN
        RETURN CASE WHEN n <= leg[3] / leg[1] THEN (greatest(leg[4] - leg[3] + n * leg[1], 0) + leg[2] - 1) / leg[2] END;
    ELSIF room < 0 THEN
        RETURN NULL;
    END IF;
    -- The newest segments stay as long as there is room beside them.
    FOR i IN REVERSE cardinality(leg) .. 3 BY 2 LOOP
        room := room - leg[i];
        IF room < 0 THEN
            RETURN (leg[i - 1] + 65) * leg[1] - now;
        END IF;
    END LOOP;
    RETURN 0;
END $$;

-- A leg of which `n` more units are taken, as deep as whole numbers go.
CREATE OR REPLACE FUNCTION {schema}.leg_add_{v}(leg bigint[], n bigint, now bigint) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    MOST CONSTANT bigint := 2251799813685248;
    newest integer := cardinality(leg);
BEGIN
    IF newest = 6 THEN
        leg[4] := least(leg[4] + least(n, MOST / leg[1] + 1) * leg[1], MOST);
    ELSIF n > 0 THEN
        IF newest = 1 OR leg[newest - 1] <> now / leg[1] THEN
            leg := leg || ARRAY[now / leg[1], 0];
            newest := newest + 2;
        END IF;
        leg[newest] := least(leg[newest] + least(n, MOST), MOST);
    END IF;
    RETURN leg;
END $$;

-- A window whose units of a segment are more, if that counts.
CREATE OR REPLACE FUNCTION {schema}.leg_use_{v}(leg bigint[], number bigint, n bigint, now bigint) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    i integer := 2;
BEGIN
    IF n = 0 OR number < now / leg[1] - 64 THEN
        RETURN leg;
    END IF;
    WHILE leg[i] < number LOOP
        i := i + 2;
    END LOOP;
    IF leg[i] = number THEN
        leg[i + 1] := leg[i + 1] + n;
        RETURN leg;
    END IF;
    RETURN leg[:i - 1] || ARRAY[number, n] || leg[i:];
END $$;

-- Reservations with one more, unless that has ended.
CREATE OR REPLACE FUNCTION {schema}.leg_reserve_{v}(list bigint[], ends bigint, number bigint, n bigint, now bigint) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF n = 0 OR ends <= now OR number < now / list[1] - 64 THEN
        RETURN list;
    END IF;
    FOR i IN 2 .. cardinality(list) BY 3 LOOP
        IF list[i] = ends AND list[i + 1] = number THEN
            list[i + 2] := list[i + 2] + n;
            RETURN list;
        END IF;
    END LOOP;
    RETURN list || ARRAY[ends, number, n];
END $$;

-- The reservations that have not ended, in a window with segments of this length; null without any. Those of a window of another length
-- count as taken now.
CREATE OR REPLACE FUNCTION {schema}.leg_live_{v}(list bigint[], length bigint, now bigint) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    kept bigint[] := ARRAY[length];
BEGIN
    IF list[1] = length THEN
        SELECT length || array_agg(e.part ORDER BY i, e.n) INTO kept
            FROM generate_series(2, cardinality(list), 3) i, LATERAL (VALUES (0, list[i]), (1, list[i + 1]), (2, list[i + 2])) e(n, part)
            WHERE list[i] > now AND list[i + 1] >= now / length - 64 AND list[i + 2] > 0;
        RETURN CASE WHEN cardinality(kept) > 1 THEN kept END;
    END IF;
    FOR i IN 2 .. cardinality(list) BY 3 LOOP
        IF list[i + 1] >= now / list[1] - 64 THEN
            kept := {schema}.leg_reserve_{v}(kept, list[i], now / length, list[i + 2], now);
        END IF;
    END LOOP;
    RETURN CASE WHEN cardinality(kept) > 1 THEN kept END;
END $$;

-- A window with what is reserved of it.
CREATE OR REPLACE FUNCTION {schema}.leg_whole_{v}(leg bigint[], list bigint[], now bigint) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    FOR i IN 2 .. coalesce(cardinality(list), 0) BY 3 LOOP
        leg := {schema}.leg_use_{v}(leg, list[i + 1], list[i + 2], now);
    END LOOP;
    RETURN leg;
END $$;

-- Whether a window with reservations has room beside its units and those, for which the segments do not matter; null without any.
CREATE OR REPLACE FUNCTION {schema}.leg_fits_{v}(leg bigint[], list bigint[], room bigint) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF cardinality(list) = 1 THEN
        RETURN NULL;
    END IF;
    FOR i IN 3 .. cardinality(leg) BY 2 LOOP
        room := room - leg[i];
    END LOOP;
    FOR i IN 4 .. cardinality(list) BY 3 LOOP
        room := room - list[i];
    END LOOP;
    RETURN room >= 0;
END $$;

-- k: the key; me: the session of the client's place; channel: that of its process, or '' if it does not listen; remember: how long the answer
-- is; names, kinds and rules, three numbers each, of the legs: price, gain and brim, or limit, length of a segment and 64, or limit, 0 and 0;
-- reservations: for each change the instant and the end, then the units of each leg before, after and used; reserve_for: for how long this step
-- reserves, or null; corrections: for each the instant, then charged and actual units of each leg; takes: for each admission the units of each leg; given: the
-- units of a grant, or null; keys: for each leg the other key at which it is counted, or null; ttl: the time to live of the client's permits, or null; waiting: how many admissions do not wait; held: the
-- units of each leg that the client holds; longest, durable: as for permits.
-- Answers: the instant, then for each admission the leg that refuses or 0, and the microseconds until it admits or ''; with a ttl whether
-- permits were lost, and '-'; with a grant, of each leg the units in use, the microseconds until there is one or '', and the places.
CREATE OR REPLACE FUNCTION {schema}.steps_{v}(
    k text, me text, channel text, seq bigint, remember bigint, names text[], kinds text[], rules bigint[], reservations bigint[],
    reserve_for bigint, corrections bigint[],
    takes bigint[], given bigint[], keys text[], ttl bigint, waiting bigint, held bigint[], longest bigint, durable boolean
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    MOST CONSTANT bigint := 2251799813685248;
    -- How many microseconds of the clock a step may leave unwritten that changes nothing else.
    UNWRITTEN CONSTANT bigint := 1000000;
    size CONSTANT integer := cardinality(names);
    -- Corrections alone are of admissions by a rule that may be an old one.
    adopts CONSTANT boolean := takes <> '{}';
    s {schema}.keys_v1%ROWTYPE; other {schema}.keys_v1%ROWTYPE;
    -- By other key, what was taken of its legs.
    shared jsonb := '{}'; name text;
    -- By leg: what was taken, null of permits and of a leg of another kind; the permits in use.
    legs text[] := '{}'; lists text[] := array_fill(NULL::text, ARRAY[size]); list bigint[]; reserve_until bigint; used bigint[] := array_fill(0, ARRAY[size]); leg bigint[]; rule bigint[];
    clock bigint; now bigint; over bigint; look bigint[]; last jsonb; answer text[];
    fresh boolean; changed boolean := corrections <> '{}' OR reservations <> '{}' OR coalesce(0 < ANY (given), false); lost boolean := false;
    own jsonb := '{}'; mine integer; place jsonb; ahead text[] := '{}'; need jsonb; waiter jsonb; waits boolean;
    first integer; first_wait bigint; refused integer; latest bigint; wait bigint;
    ahead_ bigint := 0; until jsonb := '{}';
    at integer; units bigint; charged bigint; left_ bigint; passed bigint; room bigint;
BEGIN
    -- In the order of their names, so that no two steps wait for each other.
    FOR name IN SELECT DISTINCT u.name COLLATE "C" FROM unnest(keys || k) u(name) WHERE u.name IS NOT NULL ORDER BY 1 LOOP
        LOOP
            SELECT * INTO other FROM {schema}.keys_v1 t WHERE t.key = name FOR UPDATE;
            EXIT WHEN FOUND;
            INSERT INTO {schema}.keys_v1 (key) VALUES (name) ON CONFLICT DO NOTHING;
        END LOOP;
        clock := {schema}.micros_{v}();
        IF other.gone <= clock THEN
            other.at := 0; other.ahead := 0; other.taken := '{}';
        END IF;
        ahead_ := greatest(ahead_, other.ahead, other.at - clock);
        IF name = k THEN
            s := other;
        ELSE
            shared := shared || jsonb_build_object(name, other.taken);
        END IF;
    END LOOP;
    fresh := s.gone <= clock;
    IF fresh THEN
        s.at := 0; s.ahead := 0; s.due := 9223372036854775807; s.answered := 0; s.timeline := NULL; s.epoch := NULL; s.frozen := 0;
        s.longest := 0; s.taken := '{}'; s.leases := '{}'; s.places := '[]'; s.answers := '{}';
    END IF;
    over := s.gone + s.ahead;
    s.ahead := ahead_;
    now := clock + s.ahead;

    last := s.answers->me;
    IF (last->>0)::bigint > now AND (last->>1)::bigint >= seq THEN
        -- A late copy of a step that was answered, or given up, is refused: the client awaits no reply.
        RETURN CASE WHEN (last->>1)::bigint = seq THEN (last->>2)::text[]
            ELSE now::text || array(SELECT unnest(ARRAY['1', '']) FROM generate_series(1, cardinality(takes) / size)) END;
    END IF;
    IF s.due <= now THEN
        SELECT coalesce(jsonb_object_agg(e.id, e.held), '{}') INTO s.leases FROM jsonb_each(s.leases) e(id, held) WHERE (e.held->>0)::bigint > now;
        SELECT coalesce(jsonb_object_agg(e.id, e.said), '{}') INTO s.answers FROM jsonb_each(s.answers) e(id, said) WHERE (e.said->>0)::bigint > now;
        SELECT coalesce(jsonb_agg(q.place ORDER BY q.n), '[]') INTO s.places
            FROM jsonb_array_elements(s.places) WITH ORDINALITY q(place, n) WHERE (q.place->>0)::bigint > now;
        SELECT coalesce(min((d.entry->>0)::bigint), 9223372036854775807) INTO s.due FROM (
            SELECT e.value FROM jsonb_each(s.leases) e UNION ALL SELECT e.value FROM jsonb_each(s.answers) e
            UNION ALL SELECT jsonb_array_elements(s.places)) d(entry);
    END IF;

    FOR n IN 1 .. size LOOP
        place := CASE WHEN keys[n] IS NULL THEN s.taken ELSE shared->keys[n] END;
        leg := place->>names[n];
        list := place->>(chr(1) || names[n]);
        list := {schema}.leg_live_{v}(list, list[1], now);
        leg := coalesce(leg, list[1:1]);
        rule := rules[3 * n - 2:3 * n];
        -- What has all come back leaves no rule.
        IF NOT adopts AND list IS NULL AND (cardinality(leg) = 6 AND now - leg[5] >= (leg[4] + leg[2] - 1) / leg[2] OR cardinality(leg) <> 6
            AND NOT EXISTS (SELECT FROM generate_series(2, cardinality(leg), 2) i WHERE leg[i] >= now / leg[1] - 64 AND leg[i + 1] > 0))
        THEN
            leg := NULL;
        END IF;
        IF kinds[n] = 'permits' THEN
            CONTINUE;
        ELSIF leg IS NULL OR (cardinality(leg) = 6) <> (kinds[n] = 'rate') THEN
            -- Without admissions, a leg of another kind has its name now.
            CONTINUE WHEN leg IS NOT NULL AND NOT adopts;
            leg := CASE kinds[n] WHEN 'rate' THEN rule || ARRAY[0, now, now] ELSE rule[2:2] END;
        ELSIF kinds[n] = 'rate' THEN
            -- Time until now has passed by the quota before. Compared first, since the product of a long time is too large.
            passed := now - leg[5];
            leg[4] := CASE WHEN passed >= (leg[4] + leg[2] - 1) / leg[2] THEN 0 ELSE leg[4] - passed * leg[2] END;
            leg[5] := now;
            IF adopts AND leg[1:3] <> rule THEN
                leg := rule || ARRAY[{schema}.convert_{v}(leg[4], leg[1], rule[1]), now, now];
            END IF;
        ELSE
            WHILE leg[2] < now / leg[1] - 64 LOOP
                leg := leg[1] || leg[4:];
            END LOOP;
            IF adopts AND leg[1] <> rule[2] THEN
                -- The units of a window of another length count as taken now.
                units := 0;
                FOR i IN 3 .. cardinality(leg) BY 2 LOOP
                    units := units + leg[i];
                END LOOP;
                leg := {schema}.leg_add_{v}(rule[2:2], units, now);
            END IF;
        END IF;
        legs[n] := leg;
        IF kinds[n] <> 'rate' THEN
            lists[n] := coalesce({schema}.leg_live_{v}(list, leg[1], now), leg[1:1]);
        END IF;
    END LOOP;
    units := greatest(reserve_for / 4, 1);
    reserve_until := (now + reserve_for + units - 1) / units * units;
    FOR change IN 0 .. cardinality(reservations) / (2 + 3 * size) - 1 LOOP
        at := change * (2 + 3 * size) + 1;
        FOR n IN 1 .. size LOOP
            CONTINUE WHEN lists[n] IS NULL;
            leg := legs[n];
            list := lists[n];
            FOR i IN 2 .. cardinality(list) BY 3 LOOP
                IF list[i] = reservations[at + 1] AND list[i + 1] = reservations[at] / leg[1] THEN
                    list[i + 2] := greatest(list[i + 2] - reservations[at + 3 * n - 1], 0);
                END IF;
            END LOOP;
            lists[n] := {schema}.leg_reserve_{v}(list, coalesce(reserve_until, reservations[at + 1]), reservations[at] / leg[1], reservations[at + 3 * n], now);
            legs[n] := {schema}.leg_use_{v}(leg, reservations[at] / leg[1], reservations[at + 3 * n + 1], now);
        END LOOP;
    END LOOP;
    FOR correction IN 0 .. cardinality(corrections) / (1 + 2 * size) - 1 LOOP
        at := correction * (1 + 2 * size) + 1;
        passed := greatest(now - corrections[at], 0);
        FOR n IN 1 .. size LOOP
            CONTINUE WHEN legs[n] IS NULL;
            leg := legs[n];
            charged := corrections[at + 2 * n - 1];
            units := charged - corrections[at + 2 * n];
            IF units <= 0 THEN
                leg := {schema}.leg_add_{v}(leg, -units, now);
            ELSIF cardinality(leg) = 6 THEN
                left_ := least(least(charged, MOST / leg[1] + 1) * leg[1], MOST);
                -- Otherwise all has come back, or was taken by another rule.
                IF corrections[at] >= leg[6] AND passed < (left_ + leg[2] - 1) / leg[2] THEN
                    leg[4] := greatest(leg[4] - least(least(units, MOST / leg[1] + 1) * leg[1], left_ - passed * leg[2]), 0);
                END IF;
            ELSE
                FOR i IN 2 .. cardinality(leg) BY 2 LOOP
                    IF leg[i] = corrections[at] / leg[1] THEN
                        leg[i + 1] := greatest(leg[i + 1] - units, 0);
                    END IF;
                END LOOP;
            END IF;
            legs[n] := leg;
        END LOOP;
    END LOOP;
    FOR n IN 1 .. coalesce(cardinality(given), 0) LOOP
        CONTINUE WHEN legs[n] IS NULL;
        leg := legs[n];
        units := given[n];
        IF cardinality(leg) = 6 THEN
            leg[4] := greatest(leg[4] - least(units, MOST / leg[1] + 1) * leg[1], 0);
        ELSE
            -- What was taken last.
            FOR i IN REVERSE cardinality(leg) .. 3 BY 2 LOOP
                passed := least(units, leg[i]);
                leg[i] := leg[i] - passed;
                units := units - passed;
            END LOOP;
        END IF;
        legs[n] := leg;
    END LOOP;

    IF s.places <> '[]' THEN
        SELECT q.n INTO mine FROM jsonb_array_elements(s.places) WITH ORDINALITY q(place, n) WHERE q.place->>1 = me;
    END IF;
    IF ttl IS NOT NULL THEN
        look := {schema}.look_{v}(s.timeline, s.epoch, durable, clock);
        s.longest := greatest(s.longest, ttl, longest);
        s.frozen := greatest(s.frozen, look[3] + s.longest + s.ahead);
        s.timeline := look[1]; s.epoch := look[2];
        changed := changed OR s.leases ? me OR mine IS NOT NULL;
        own := coalesce(s.leases->me->1, own);
        FOR n IN 1 .. size LOOP
            CONTINUE WHEN kinds[n] <> 'permits';
            -- All are lost when some are not known.
            lost := lost OR held[n] > coalesce((own->>names[n])::bigint, 0);
            own := CASE WHEN lost THEN '{}' WHEN held[n] = 0 THEN own - names[n] ELSE own || jsonb_build_object(names[n], held[n]) END;
        END LOOP;
        s.leases := CASE own WHEN '{}' THEN s.leases - me ELSE s.leases || jsonb_build_object(me, jsonb_build_array(now + ttl, own)) END;
    END IF;
    IF s.leases <> '{}' THEN
        FOR n IN 1 .. size LOOP
            CONTINUE WHEN kinds[n] <> 'permits';
            used[n] := (SELECT coalesce(sum((e.held->1->>names[n])::bigint), 0) FROM jsonb_each(s.leases) e(id, held));
        END LOOP;
    END IF;

    answer := ARRAY[now];
    FOR take IN 0 .. cardinality(takes) / size - 1 LOOP
        refused := 0; latest := 0; need := '{}';
        FOR n IN 1 .. size LOOP
            IF ttl > 0 AND kinds[n] = 'permits' AND takes[take * size + n] > 0 THEN
                need := need || jsonb_build_object(names[n], greatest(rules[3 * n - 2] - takes[take * size + n], 0));
            END IF;
        END LOOP;
        waits := need <> '{}' AND take >= waiting;
        IF waits AND waiter IS NOT NULL THEN
            refused := first; latest := first_wait;
        ELSE
            FOR n IN 1 .. size LOOP
                units := takes[take * size + n];
                CONTINUE WHEN units = 0;
                room := rules[3 * n - 2] - units;
                IF {schema}.leg_fits_{v}(legs[n]::bigint[], lists[n]::bigint[], room) THEN
                    wait := 0;
                ELSIF kinds[n] <> 'permits' THEN
                    wait := {schema}.leg_wait_{v}({schema}.leg_whole_{v}(legs[n]::bigint[], lists[n]::bigint[], now), units, rules[3 * n - 2], now);
                ELSIF ttl IS NULL OR room < 0 THEN
                    wait := NULL;
                ELSE
                    -- Until the places before and enough leases end, and all leases that the server may not know.
                    SELECT greatest(s.frozen, now, max((q.place->>0)::bigint)) INTO wait
                        FROM jsonb_array_elements(s.places) WITH ORDINALITY q(place, n2)
                        WHERE (mine IS NULL OR q.n2 < mine) AND q.place->2 ? names[n];
                    left_ := used[n];
                    FOR place IN SELECT e.held FROM jsonb_each(s.leases) e(id, held)
                        WHERE left_ > room AND e.held->1 ? names[n] ORDER BY (e.held->>0)::bigint
                    LOOP
                        EXIT WHEN left_ <= room;
                        left_ := left_ - (place->1->>names[n])::bigint;
                        wait := greatest(wait, (place->>0)::bigint);
                    END LOOP;
                    wait := wait - now;
                END IF;
                IF coalesce(wait > latest, true) THEN
                    refused := n; latest := wait;
                END IF;
                EXIT WHEN wait IS NULL;
            END LOOP;
            IF refused = 0 THEN
                changed := true;
                FOR n IN 1 .. size LOOP
                    units := takes[take * size + n];
                    IF lists[n] IS NOT NULL AND reserve_for > 0 THEN
                        list := lists[n];
                        lists[n] := {schema}.leg_reserve_{v}(list, reserve_until, now / list[1], units, now);
                    ELSIF kinds[n] <> 'permits' THEN
                        legs[n] := {schema}.leg_add_{v}(legs[n]::bigint[], units, now);
                    ELSIF units > 0 THEN
                        used[n] := used[n] + units;
                        own := own || jsonb_build_object(names[n], coalesce((own->>names[n])::bigint, 0) + units);
                        s.leases := s.leases || jsonb_build_object(me, jsonb_build_array(now + ttl, own));
                    END IF;
                END LOOP;
                IF waits AND mine IS NOT NULL THEN
                    -- The place was that of this waiter: the next one goes behind the others.
                    s.places := s.places - (mine - 1);
                    mine := NULL;
                END IF;
            ELSIF waits AND latest IS NOT NULL THEN
                waiter := need; first := refused; first_wait := latest;
            END IF;
        END IF;
        answer := answer || ARRAY[refused::text, coalesce(latest::text, '')];
    END LOOP;

    IF ttl IS NOT NULL THEN
        IF waiter IS NOT NULL THEN
            place := jsonb_build_array(now + ttl, me, waiter, kinds[first] <> 'permits', channel);
            s.places := CASE WHEN mine IS NULL THEN s.places || jsonb_build_array(place)
                ELSE jsonb_set(s.places, ARRAY[(mine - 1)::text], place) END;
            changed := true;
        ELSIF mine IS NOT NULL THEN
            s.places := s.places - (mine - 1);
        END IF;
        answer := answer || ARRAY[lost::integer::text, '-'];
    END IF;
    -- The clients whose permits are there are told, unless the server may not know all leases.
    IF s.places <> '[]' AND s.frozen <= now THEN
        FOR place, at IN SELECT q.place, q.n FROM jsonb_array_elements(s.places) WITH ORDINALITY q(place, n) ORDER BY q.n LOOP
            IF NOT (place->>3)::boolean AND NOT EXISTS (SELECT FROM jsonb_each(place->2) r(name, room) WHERE r.name = ANY (ahead)
                OR r.room::bigint < (SELECT sum((e.held->1->>r.name)::bigint) FROM jsonb_each(s.leases) e(id, held)))
            THEN
                IF place->>4 <> '' THEN
                    PERFORM pg_notify(place->>4, k || ' ' || (place->>1));
                END IF;
                s.places := jsonb_set(s.places, ARRAY[(at - 1)::text, '3'], 'true');
                changed := true;
            END IF;
            ahead := ahead || array(SELECT jsonb_object_keys(place->2));
        END LOOP;
    END IF;
    FOR n IN 1 .. coalesce(cardinality(given), 0) LOOP
        leg := legs[n];
        units := 0; wait := NULL; left_ := 0;
        IF kinds[n] = 'permits' THEN
            units := used[n];
            SELECT count(*) INTO left_ FROM jsonb_array_elements(s.places) q(place) WHERE q.place->2 ? names[n];
        ELSIF leg IS NULL THEN
            wait := CASE WHEN rules[3 * n - 2] > 0 THEN 0 END;
        ELSE
            leg := {schema}.leg_whole_{v}(leg, lists[n]::bigint[], now);
            wait := {schema}.leg_wait_{v}(leg, 1, rules[3 * n - 2], now);
            IF cardinality(leg) = 6 THEN
                units := (leg[4] + leg[1] - 1) / leg[1];
            ELSE
                FOR i IN 3 .. cardinality(leg) BY 2 LOOP
                    units := units + leg[i];
                END LOOP;
            END IF;
        END IF;
        answer := answer || ARRAY[units::text, coalesce(wait::text, ''), left_::text];
    END LOOP;

    PERFORM {schema}.commit_{v}(durable AND changed);
    IF changed THEN
        FOR n IN 1 .. size LOOP
            leg := legs[n];
            -- A rate is as new with its burst, and a window without units.
            wait := {schema}.leg_wait_{v}(leg, CASE kinds[n] WHEN 'rate' THEN leg[3] / leg[1] ELSE 1 END, 1, now);
            IF keys[n] IS NOT NULL THEN
                IF wait > 0 THEN
                    shared := jsonb_set(shared, ARRAY[keys[n], names[n]], to_jsonb(legs[n]));
                    until := until || jsonb_build_object(keys[n], greatest((until->>keys[n])::bigint, now + wait));
                ELSIF leg IS NOT NULL THEN
                    shared := shared #- ARRAY[keys[n], names[n]];
                END IF;
            ELSIF wait > 0 THEN
                s.taken := s.taken || jsonb_build_object(names[n], legs[n]);
                over := greatest(over, now + wait);
            ELSIF leg IS NOT NULL OR adopts THEN
                s.taken := s.taken - names[n];
            END IF;
            list := lists[n];
            list := {schema}.leg_live_{v}(list, list[1], now);
            name := chr(1) || names[n];
            latest := (SELECT max(list[i]) FROM generate_series(2, cardinality(list), 3) i);
            IF list IS NOT NULL AND keys[n] IS NOT NULL THEN
                shared := jsonb_set(shared, ARRAY[keys[n], name], to_jsonb(list::text));
                until := until || jsonb_build_object(keys[n], greatest((until->>keys[n])::bigint, latest));
            ELSIF list IS NOT NULL THEN
                s.taken := s.taken || jsonb_build_object(name, list::text);
                over := greatest(over, latest);
            ELSIF keys[n] IS NULL AND (leg IS NOT NULL OR adopts) THEN
                s.taken := s.taken - name;
            ELSIF leg IS NOT NULL THEN
                shared := shared #- ARRAY[keys[n], name];
            END IF;
        END LOOP;
        FOR name, place IN SELECT e.name, e.taken FROM jsonb_each(shared) e(name, taken) LOOP
            SELECT * INTO other FROM {schema}.keys_v1 t WHERE t.key = name;
            latest := coalesce((until->>name)::bigint, 0) - s.ahead;
            units := greatest(latest, CASE WHEN other.gone > clock THEN other.gone + other.ahead - s.ahead END);
            IF place = '{}' AND (other.gone <= clock OR (other.leases, other.places, other.answers) = ('{}', '[]', '{}')) THEN
                DELETE FROM {schema}.keys_v1 t WHERE t.key = name;
            ELSIF other.gone <= clock THEN
                -- As new, but for what this step has taken.
                UPDATE {schema}.keys_v1 t SET deadline = (units / 250000 + 1) * 250000, gone = units, at = now, ahead = s.ahead,
                    due = 9223372036854775807, answered = 0, timeline = NULL, epoch = NULL, frozen = 0, longest = 0, taken = place,
                    leases = '{}', places = '[]', answers = '{}' WHERE t.key = name;
            ELSE
                UPDATE {schema}.keys_v1 t SET deadline = (units / 250000 + 1) * 250000, gone = units, at = now, ahead = s.ahead,
                    taken = place WHERE t.key = name;
            END IF;
        END LOOP;
        s.due := least(s.due, now + remember, now + ttl);
        s.answered := greatest(s.answered, now + remember);
        s.answers := s.answers || jsonb_build_object(me, jsonb_build_array(now + remember, seq, answer::text));
        over := CASE WHEN (s.taken, s.leases, s.places) = ('{}', '{}', '[]') THEN 0 ELSE greatest(over, now + ttl) END;
        s.gone := greatest(over, s.answered) - s.ahead;
        -- The deadline changes seldom.
        units := greatest(remember / 2, 250000);
        UPDATE {schema}.keys_v1 t SET deadline = (s.gone / units + 1) * units, gone = s.gone, at = now, ahead = s.ahead, due = s.due,
            answered = s.answered, timeline = s.timeline, epoch = s.epoch, frozen = s.frozen, longest = s.longest, taken = s.taken,
            leases = s.leases, places = s.places, answers = s.answers WHERE t.key = k;
    ELSE
        -- A step without changes writes the clock too. If the server's clock is behind what is written, ours would stand still until that has
        -- caught up, and nothing would come back. A clock that is set back goes on from what is written: that is at most a second old.
        UPDATE {schema}.keys_v1 t SET deadline = t.deadline + t.ahead - s.ahead, gone = t.gone + t.ahead - s.ahead, at = now, ahead = s.ahead
            WHERE t.key = ANY (keys || k) AND t.gone > clock AND (t.ahead < s.ahead OR t.at <= now - UNWRITTEN);
        IF fresh OR shared <> '{}' THEN
            DELETE FROM {schema}.keys_v1 t WHERE t.key = ANY (keys || k) AND t.gone <= clock;
        END IF;
    END IF;
    RETURN answer;
END $$;

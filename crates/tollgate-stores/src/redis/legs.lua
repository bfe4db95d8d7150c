-- The rates, windows and permits of a key that many machines share, in whole numbers. Carries out one step: changes of reservations, then
-- corrections, and then admissions, each from all legs or from none. Rates and windows may be counted at other keys. `KeyLegs` of src/remote/model/legs.rs is
-- the reference.
--
-- KEYS, with one hash tag, both packed:
--   1 { at, ahead (how much later `at` is than the clock, which may be set back), until (when all legs are as new), { by name what was
--     taken of a leg } }: { price, gain, brim, level, when that was, since when it counts by this rule } of a rate, { length of a segment,
--     number, units, ... } of a window, in order. Then, with permits, { leases, places, the run id and replication id of the server, until
--     when it may not know all leases, the longest time to live }, or false; with reservations, { by name what is reserved of a window }: {
--     length of a segment, when it ends, number, units, ... }. Of permits: by client { when its lease ends, { units by leg } }; in order { client,
--     when its place ends, { with how many in use there is room for it, by leg }, whether it was told, channel, message }.
--   2 the number of the last step of this client that changed something, and its answer.
--   then as the first, of each other key that has legs;
--   last, not in a cluster, with permits: as the sixth of permits.lua.
-- ARGV: the number of the step, for how many milliseconds its answer is remembered, the numbers of legs, corrections, admissions and grants, of which there is one at most, of
--   other keys and of changes of reservations, and for how many microseconds this step reserves, or 0; then for each leg its name and price, gain, brim, or its name, limit, length of a segment and "w", or its name, limit, 0 and "p"; for
--   each change of reservations the instant and the end, and for each leg the units reserved before and after, and those used; for each correction the instant, and for each leg the charged and the actual units; for each admission and grant the units of each leg;
--   with other keys, the number of that of each leg, or 0. Then, with permits, the time to live in microseconds, the client, how many admissions do not wait, channel and message for its place; the
--   replication ids that it knows, the longest time to live of any process and whether the server may evict keys, as for permits.lua;
--   the held units of each leg.
-- Answers, as strings: the instant, then for each admission the leg that refuses or "0", and the microseconds until it admits or "";
--   with permits whether they were lost, and the replication id or "-"; with a grant, of each leg the units in use, the microseconds until
--   there is one or "", and the places.
local SEGMENTS, MOST = 64, 2251799813685248
-- How many microseconds of the clock a step may leave unwritten that changes nothing else.
local UNWRITTEN = 1000000
local seq, remember, size = ARGV[1], ARGV[2], tonumber(ARGV[3])
local corrections, takes, grants = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local others, reservations, reserve_for = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
-- Where what is reported of permits begins.
local lease = 10 + (4 + takes + grants + min(others, 1)) * size + corrections * (1 + 2 * size) + reservations * (2 + 3 * size)

local last = redis.call('GET', KEYS[2])
if last then
    last = cmsgpack.unpack(last)
    local number = tonumber(table.remove(last, 1))
    if number == tonumber(seq) then return last end
    -- A late copy of a step that was answered, or given up: the client awaits no reply.
    if number > tonumber(seq) then
        local refused = { last[1] }
        for _ = 1, takes do
            table.insert(refused, '1')
            table.insert(refused, '')
        end
        return refused
    end
end

local function int(number) return string.format('%.0f', number) end

local function read(key)
    local known = redis.call('GET', key)
    if known then return unpack(cmsgpack.unpack(known)) end
    return 0, 0, 0, {}, nil, nil
end

local at, ahead, over, taken, held, reserved = read(KEYS[1])
reserved = reserved or {}
local written_at, written_ahead = at, ahead
local time = redis.call('TIME')
time = time[1] * 1000000 + time[2]
-- The server's clock may be set back; ours goes on from where it was.
ahead = max(ahead, at - time)
-- The other keys, and by leg the key at which it is counted, and what was taken there.
local records, record_of, takens, reserveds = {}, {}, {}, {}
for number = 1, others do
    local last, later, over, taken, held, reserved = read(KEYS[2 + number])
    records[number] = { at = last, ahead = later, over = over, taken = taken, held = held, reserved = reserved or {} }
    ahead = max(ahead, later, last - time)
end
for n = 1, size do
    record_of[n] = others > 0 and records[tonumber(ARGV[lease - size - 1 + n])] or nil
    takens[n] = record_of[n] and record_of[n].taken or taken
    reserveds[n] = record_of[n] and record_of[n].reserved or reserved
end
local now = time + ahead
-- Corrections alone are of admissions by a rule that may be an old one.
local adopts = takes > 0

-- Another quota has another price: taken tokens stay taken.
local function convert(level, old, new)
    if old == new then return level end
    local whole = floor(level / old)
    local rest = (level - whole * old) * new
    local parts = floor(rest / old)
    if rest >= 2 * MOST then
        parts = parts + 2
    elseif parts * old < rest then
        parts = parts + 1
    end
    return min(whole * new + min(parts, new), MOST)
end

-- Whether all that was taken of a leg has come back.
local function is_fresh(leg)
    if #leg == 6 then return now - leg[5] >= ceil(leg[4] / leg[2]) end
    for n = 2, #leg, 2 do
        if leg[n] >= floor(now / leg[1]) - SEGMENTS and leg[n + 1] > 0 then return false end
    end
    return true
end

-- A rate as of now, as it is packed.
local function rate(old, price, gain, brim)
    if not old or #old ~= 6 then return { price, gain, brim, 0, now, now } end
    -- Time until now has passed by the quota before. Compared first: the product may exceed the exact numbers of a double.
    local level, passed, since = old[4], now - old[5], now
    if passed >= ceil(level / old[2]) then level = 0 else level = level - passed * old[2] end
    if not adopts then price, gain, brim = old[1], old[2], old[3] end
    if price == old[1] and gain == old[2] and brim == old[3] then since = old[6] end
    return { price, gain, brim, convert(level, old[1], price), now, since }
end

-- A window as of now, as it is packed: an odd number of entries, where a rate has six.
local function window(old, length)
    if not old or #old == 6 then return { length } end
    if not adopts then length = old[1] end
    local leg, total, oldest = { length }, 0, floor(now / old[1]) - SEGMENTS
    for n = 2, #old, 2 do
        if old[n] >= oldest and old[n + 1] > 0 then
            total = total + old[n + 1]
            if old[1] == length then
                leg[#leg + 1] = old[n]
                leg[#leg + 1] = old[n + 1]
            end
        end
    end
    -- The units of a window of another length count as taken now.
    if old[1] ~= length and total > 0 then leg = { length, floor(now / length), total } end
    return leg
end

-- Reserves units of a segment that counts, unless the reservation has ended.
local function reserve(list, ends, number, units)
    if units == 0 or ends <= now or number < floor(now / list[1]) - SEGMENTS then return end
    for i = 2, #list, 3 do
        if list[i] == ends and list[i + 1] == number then
            list[i + 2] = list[i + 2] + units
            return
        end
    end
    local last = #list
    list[last + 1], list[last + 2], list[last + 3] = ends, number, units
end

-- The reservations that have not ended, in a window with segments of this length; nothing without any. Those of a window of another length
-- count as taken now.
local function live(old, length)
    if not old then return nil end
    length = length or old[1]
    local list, oldest, last = { length }, floor(now / old[1]) - SEGMENTS, 1
    for i = 2, #old, 3 do
        local ends, number, units = old[i], old[i + 1], old[i + 2]
        if old[1] ~= length then
            if number >= oldest then reserve(list, ends, floor(now / length), units) end
        elseif ends > now and number >= oldest and units > 0 then
            list[last + 1], list[last + 2], list[last + 3] = ends, number, units
            last = last + 3
        end
    end
    return #list > 1 and list or nil
end

-- A window with what is reserved of it.
local function whole(leg, list)
    if not list or #list == 1 then return leg end
    local units, all, last, current = {}, { leg[1] }, 1, floor(now / leg[1])
    for i = 2, #leg, 2 do units[leg[i]] = leg[i + 1] end
    for i = 2, #list, 3 do units[list[i + 1]] = (units[list[i + 1]] or 0) + list[i + 2] end
    for number = current - SEGMENTS, current do
        local count = units[number]
        if count then
            all[last + 1], all[last + 2] = number, count
            last = last + 2
        end
    end
    return all
end

-- The units of a window, with those that are reserved of it.
local function total(leg, list)
    local sum = 0
    for i = 3, #leg, 2 do sum = sum + leg[i] end
    for i = 4, #list, 3 do sum = sum + list[i] end
    return sum
end

-- Units of a segment of a window are used, if that counts.
local function use(leg, number, units)
    if units == 0 or number < floor(now / leg[1]) - SEGMENTS then return end
    local i = 2
    while leg[i] and leg[i] < number do i = i + 2 end
    if leg[i] == number then
        leg[i + 1] = leg[i + 1] + units
    else
        table.insert(leg, i, units)
        table.insert(leg, i, number)
    end
end

local function add(leg, n)
    if n == 0 then return end
    if #leg == 6 then
        leg[4] = min(leg[4] + n * leg[1], MOST)
        return
    end
    local current, newest = floor(now / leg[1]), #leg
    if newest > 1 and leg[newest - 1] == current then
        leg[newest] = leg[newest] + n
    else
        leg[newest + 1] = current
        leg[newest + 2] = n
    end
end

local function give(leg, n, charged, when)
    if #leg == 6 then
        local left, gone = min(charged * leg[1], MOST), now - when
        -- All that was taken before has come back, or was taken by another rule.
        if when < leg[6] or gone >= ceil(left / leg[2]) then return end
        leg[4] = max(leg[4] - min(n * leg[1], left - gone * leg[2]), 0)
        return
    end
    local number = floor(when / leg[1])
    for i = 2, #leg, 2 do
        if leg[i] == number then leg[i + 1] = max(leg[i + 1] - n, 0) end
    end
end

-- Gives back `n` units that were taken last, or as many as were.
local function grant(leg, n)
    if #leg == 6 then
        leg[4] = max(leg[4] - n * leg[1], 0)
        return
    end
    for i = #leg, 3, -2 do
        local part = min(n, leg[i])
        leg[i] = leg[i] - part
        n = n - part
    end
end

-- The microseconds until a leg gives `n`; nothing when it never does.
local function wait(leg, n, limit)
    if n == 0 then return 0 end
    if #leg == 6 then
        local most = leg[3] - n * leg[1]
        if most < 0 then return nil end
        return ceil(max(leg[4] - most, 0) / leg[2])
    end
    if n > limit then return nil end
    local left = -(limit - n)
    for i = 3, #leg, 2 do left = left + leg[i] end
    if left <= 0 then return 0 end
    for i = 3, #leg, 2 do
        left = left - leg[i]
        if left <= 0 then return (leg[i - 1] + SEGMENTS + 1) * leg[1] - now end
    end
end

-- The microseconds until a leg is as new.
local function rest(leg)
    if #leg == 6 then return ceil(leg[4] / leg[2]) end
    for i = #leg, 3, -2 do
        if leg[i] > 0 then return (leg[i - 1] + SEGMENTS + 1) * leg[1] - now end
    end
    return 0
end

-- Permits. What a client reports, renews and needs.
local ttl, client, permits, history = tonumber(ARGV[lease] or ''), ARGV[lease + 1], {}, '-'
local leases, places, run, frozen, longest_ttl = unpack(held or {})
local froze = false
leases, places, frozen = leases or {}, places or {}, frozen or 0
if ttl then longest_ttl = max(ttl, tonumber(ARGV[lease + 6]), longest_ttl or 0) end

local place_of, used, look_at_server, permit_wait, needs, sweep, report, set_place, to_tell
-- Made only where they are used: a key without permits pays for none of them.
if ttl or held then
    function place_of(id)
        for n, place in ipairs(places) do
            if place[1] == id then return n end
        end
    end

    function used(name)
        local sum = 0
        for _, other in pairs(leases) do sum = sum + (other[2][name] or 0) end
        return sum
    end

    -- A server that was restarted, or has taken over from another, may know fewer leases than there are: see permits.lua.
    function look_at_server()
        local replication = redis.call('INFO', 'replication')
        history = string.match(replication, 'master_replid:(%w+)') or '-'
        local was, since = string.match(run or '', '^(%w+) ([%w-]+)$')
        if since == history then return end
        local server = redis.call('INFO', 'server')
        local here = string.match(server, 'run_id:(%w+)') or '0'
        local took_over = tonumber(string.match(replication, 'second_repl_offset:(%-?%d+)') or 0) >= 0
        run = here .. ' ' .. history
        if was == here and not took_over then return end
        local age = 0
        if not was then
            -- The server reports whole seconds, which may be one too many.
            age = (tonumber(string.match(server, 'uptime_in_seconds:(%d+)') or 0) - 1) * 1000000
            local evicts = ARGV[lease + 7] == '1'
            if evicts then history = history .. 'e' .. (string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)') or '') end
            if took_over or evicts then
                age = tonumber(string.match(' ' .. ARGV[lease + 5], ' ' .. history .. ':(%d+)') or 0)
                if KEYS[3 + others] then
                    local noted, since = string.match(redis.call('GET', KEYS[3 + others]) or '', '^(%w+) (%d+)$')
                    if noted == history and tonumber(since) <= time then age = max(age, time - since) else since = time end
                    redis.call('SET', KEYS[3 + others], history .. ' ' .. int(since), 'PX', 604800000)
                end
            end
        end
        froze, frozen = was ~= nil, max(frozen, now + longest_ttl - max(age, 0))
    end

    -- The microseconds until `n` permits are there unless leases and places are renewed; nothing when they never are.
    function permit_wait(name, n, limit)
        if n > limit then return nil end
        local latest, sum, ends = now, used(name), {}
        for _, place in ipairs(places) do
            if place[1] == client then break end
            if place[3][name] then latest = max(latest, place[2]) end
        end
        if sum > limit - n then
            for _, other in pairs(leases) do ends[#ends + 1] = other end
            table.sort(ends, function(one, two) return one[1] < two[1] end)
        end
        for _, other in ipairs(ends) do
            if sum <= limit - n then break end
            sum = sum - (other[2][name] or 0)
            if other[2][name] then latest = max(latest, other[1]) end
        end
        if latest == now and history == '-' then look_at_server() end
        return max(latest, frozen) - now
    end

    -- What an admission needs of the permit legs; nothing when that is none.
    function needs(at)
        local all
        for n = 1, size do
            local count = permits[n] and tonumber(ARGV[at + n - 1]) or 0
            if count > 0 then
                all = all or {}
                all[ARGV[6 + 4 * n]] = count
            end
        end
        return all
    end

    -- Drops the leases and places that have ended.
    function sweep()
        for id, other in pairs(leases) do
            if other[1] <= now then leases[id] = nil end
        end
        local kept = {}
        for _, place in ipairs(places) do
            if place[2] > now then kept[#kept + 1] = place end
        end
        places = kept
    end

    -- Sets the units of the client to those that it reports, and renews its lease. True when some are not known: then all are lost.
    function report()
        local units = leases[client] and leases[client][2] or {}
        leases[client] = nil
        for n = 1, size do
            local name, count = ARGV[6 + 4 * n], tonumber(ARGV[lease + 7 + n])
            if permits[n] then
                if count > (units[name] or 0) then return true end
                units[name] = count > 0 and count or nil
            end
        end
        if next(units) then leases[client] = { now + ttl, units } end
        return false
    end

    -- Leaves, renews or withdraws the place of the client.
    function set_place(waiter, by_permits)
        local place = place_of(client)
        if waiter then
            local rooms = {}
            for n, limit in pairs(permits) do
                local name = ARGV[6 + 4 * n]
                if waiter[name] then rooms[name] = max(limit - waiter[name], 0) end
            end
            places[place or #places + 1] = { client, now + ttl, rooms, not by_permits, ARGV[lease + 3], ARGV[lease + 4] }
        elseif place then
            table.remove(places, place)
        end
    end

    -- The places whose clients are to be told: their permits are there.
    function to_tell()
        local ahead, told = {}, {}
        for _, place in ipairs(frozen > now and {} or places) do
            local fits = not place[4]
            for name, room in pairs(place[3]) do
                fits = fits and not ahead[name] and used(name) <= room
                ahead[name] = true
            end
            if fits then
                told[#told + 1] = place
                place[4] = true
            end
        end
        return told
    end
end

local legs, limits, lists, at = {}, {}, {}, 10
for n = 1, size do
    local old, one, two, three = takens[n][ARGV[at]], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3]
    local list = live(reserveds[n][ARGV[at]])
    if list and not old then old = { list[1] } end
    -- It leaves no rule then.
    if not adopts and old and not list and is_fresh(old) then old = nil end
    if three == 'p' then
        legs[n], permits[n] = false, one
    elseif old and not adopts and (three == 'w') == (#old == 6) then
        -- A leg of another kind has its name now.
        legs[n], limits[n] = false, three == 'w' and one or nil
    elseif three == 'w' then
        legs[n], limits[n] = window(old, two), one
        lists[n] = live(list, legs[n][1]) or { legs[n][1] }
    else
        legs[n] = rate(old, one, two, tonumber(three))
    end
    at = at + 4
end
local quarter = max(floor(reserve_for / 4), 1)
local reserve_until = ceil((now + reserve_for) / quarter) * quarter
for _ = 1, reservations do
    local when, ends = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
    for n = 1, size do
        local leg, list = legs[n], lists[n]
        local before, after, used = tonumber(ARGV[at + 3 * n - 1]), tonumber(ARGV[at + 3 * n]), tonumber(ARGV[at + 3 * n + 1])
        if list then
            local number = floor(when / leg[1])
            for i = 2, #list, 3 do
                if list[i] == ends and list[i + 1] == number then list[i + 2] = max(list[i + 2] - before, 0) end
            end
            reserve(list, reserve_for > 0 and reserve_until or ends, number, after)
            use(leg, number, used)
        end
    end
    at = at + 2 + 3 * size
end
for _ = 1, corrections do
    local when = tonumber(ARGV[at])
    for n = 1, size do
        local charged, actual = tonumber(ARGV[at + 2 * n - 1]), tonumber(ARGV[at + 2 * n])
        if legs[n] and actual < charged then
            give(legs[n], charged - actual, charged, when)
        elseif legs[n] then
            add(legs[n], actual - charged)
        end
    end
    at = at + 1 + 2 * size
end
local answer, changed, lost, waiter, first = { int(now) }, corrections + reservations > 0, false, nil, nil
for n = 1, grants * size do
    local units = tonumber(ARGV[at + takes * size + n - 1])
    changed = changed or units > 0
    if legs[n] then grant(legs[n], units) end
end
if held then sweep() end
if ttl then
    changed = changed or leases[client] ~= nil or place_of(client) ~= nil
    lost = report()
end
for take = 1, takes do
    local refused, longest = 0, 0
    local need = ttl and needs(at)
    local waits = need and take > tonumber(ARGV[lease + 2])
    for n = 1, waits and waiter and 0 or size do
        local time, units = 0, tonumber(ARGV[at + n - 1])
        if legs[n] then
            local leg, list = legs[n], lists[n]
            -- With reservations, and room beside them, the segments do not matter.
            local fits = list and #list > 1 and total(leg, list) <= limits[n] - units
            time = fits and 0 or wait(whole(leg, list), units, limits[n])
        elseif units > 0 then
            time = ttl and permit_wait(ARGV[6 + 4 * n], units, permits[n])
        end
        if not time then
            refused, longest = n, nil
            break
        end
        if time > longest then refused, longest = n, time end
    end
    if waits and waiter then
        refused, longest = first[1], first[2]
    elseif refused == 0 then
        for n = 1, size do
            local units = tonumber(ARGV[at + n - 1])
            if lists[n] and reserve_for > 0 then
                reserve(lists[n], reserve_until, floor(now / legs[n][1]), units)
            elseif legs[n] then
                add(legs[n], units)
            end
        end
        if need then
            leases[client] = leases[client] or { now + ttl, {} }
            local units = leases[client][2]
            for name, n in pairs(need) do units[name] = (units[name] or 0) + n end
        end
        -- The place was that of this waiter: the next one goes behind the others.
        local place = waits and place_of(client)
        if place then table.remove(places, place) end
        changed = true
    elseif waits and longest then
        waiter, first = need, { refused, longest }
    end
    answer[#answer + 1] = int(refused)
    answer[#answer + 1] = longest and int(longest) or ''
    at = at + size
end
local told = {}
if ttl then
    set_place(waiter, first and permits[first[1]] ~= nil)
    answer[#answer + 1] = lost and '1' or '0'
    answer[#answer + 1] = history
    changed = changed or froze or place_of(client) ~= nil
end
if ttl or held then
    told = to_tell()
    changed = changed or #told > 0
end
for n = 1, grants * size do
    local leg, name, in_use, time, waiting = legs[n], ARGV[6 + 4 * n], 0, nil, 0
    if permits[n] then
        for _, other in pairs(leases) do in_use = in_use + (other[2][name] or 0) end
        for _, place in ipairs(places) do waiting = waiting + (place[3][name] and 1 or 0) end
    elseif not leg then
        time = (limits[n] or 1) > 0 and 0 or nil
    else
        leg = whole(leg, lists[n])
        time = wait(leg, 1, limits[n])
        if #leg == 6 then
            in_use = ceil(leg[4] / leg[1])
        else
            for i = 3, #leg, 2 do in_use = in_use + leg[i] end
        end
    end
    answer[#answer + 1] = int(in_use)
    answer[#answer + 1] = time and int(time) or ''
    answer[#answer + 1] = int(waiting)
end
local function write(key, over, taken, held, reserved)
    if over > now then
        local record = { now, ahead, over, taken, held }
        if next(reserved) then record = { now, ahead, over, taken, held or false, reserved } end
        redis.call('SET', key, cmsgpack.pack(record), 'PX', ceil((over - now) / 1000) + 1)
    else
        redis.call('DEL', key)
    end
end
-- A step without changes writes the clock too. If the server's clock is behind what is written, ours would stand still until that has
-- caught up, and nothing would come back. A clock that is set back goes on from what is written: that is at most a second old.
local function is_late(at, before) return at > 0 and (ahead > before or now - at >= UNWRITTEN) end
if changed then
    for n = 1, size do
        if permits[n] and adopts then taken[ARGV[6 + 4 * n]], reserved[ARGV[6 + 4 * n]] = nil, nil end
        if legs[n] then
            local left, record, list = rest(legs[n]), record_of[n], live(lists[n])
            takens[n][ARGV[6 + 4 * n]] = left > 0 and legs[n] or nil
            reserveds[n][ARGV[6 + 4 * n]] = list
            for i = 2, list and #list or 0, 3 do left = max(left, list[i] - now) end
            if record then record.over = max(record.over, now + left) else over = max(over, now + left) end
        end
    end
    if ttl or held then
        over = max(over, frozen)
        for _, other in pairs(leases) do over = max(over, other[1]) end
        for _, place in ipairs(places) do over = max(over, place[2]) end
        held = (next(leases) or places[1] or frozen > now) and { leases, places, run or '', frozen, longest_ttl } or nil
        if not held and not next(taken) and not next(reserved) then over = now end
    end
    write(KEYS[1], over, taken, held, reserved)
    for number, record in ipairs(records) do
        if not record.held and not next(record.taken) and not next(record.reserved) then record.over = now end
        write(KEYS[2 + number], record.over, record.taken, record.held, record.reserved)
    end
    redis.call('SET', KEYS[2], cmsgpack.pack({ seq, unpack(answer) }), 'PX', remember)
else
    if is_late(written_at, written_ahead) then write(KEYS[1], over, taken, held, reserved) end
    for number, record in ipairs(records) do
        if is_late(record.at, record.ahead) then write(KEYS[2 + number], record.over, record.taken, record.held, record.reserved) end
    end
end
for _, place in ipairs(told) do redis.call('PUBLISH', place[5], place[6]) end
return answer

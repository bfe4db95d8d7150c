-- Permits that many machines share. Carries out one sync; src/remote/backend.rs has the contract of a Backend.
--
-- KEYS, all with one hash tag, of which the first five are gone with the last session:
--   1 hash: kind, limit, used, token, place, now, ahead (how much later `now` is than the clock, which may be set back), frozen, run
--     (the run id and replication id of the server), ttl (the longest), parts, told (how many of 5 were, about the waiters), and by "w<session>:<request>" the need and want
--   2 sorted set: sessions by the microsecond at which they expire
--   3 hash: by session, its record, packed
--   4 sorted set: "<session>:<request>" by place in the queue
--   5 sorted set: sessions that hold units, by the token of their oldest grant with some
--   6 not in a cluster: the last history that was asked about, and when that was first
-- The state counts the entries of the other keys, in `parts`. If a count differs, a key was evicted or deleted: the sync forgets the
-- rest, each session learns that it is lost, and nothing is granted until the last of their leases has ended.
-- ARGV: limit, channel, then the sync: session, seq, begin, ttl, returned, seen, new limit or "", keeps, end, acked, oldest or "",
--   number of requests; the replication ids that the client knows, as "<id>:<microseconds>", each with the time since it knows it;
--   the longest time to live of any process; whether the server may evict keys; for each request id, need, want, queue; the ids that
--   are withdrawn.
-- Answers, as strings, since a double has too many digits for a number of Lua and too few for one of 64 bits:
--   alive, others wait, microseconds until the next sync or "", limit, used, waiting, sessions, floor, the replication id or "-",
--   then for each grant: request, units, token.
--
-- A record: [seq, granted, returned, highest request, keeps, channel, expires, queued, grants, oldest or 0], a grant: [request, units, token].
local SEQ, GRANTED, RETURNED, ASKED, KEEPS, CHANNEL, EXPIRES, QUEUED, GRANTS, OLDEST = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local LOOKOUTS, SWEEP, FIRST = 64, 64, 18
local state, dues, sessions, queue, oldest = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local session, seq, begin, ttl = ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1', tonumber(ARGV[6])
local returned, seen, keeps, ends = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[10] == '1', ARGV[11] == '1'

local function int(number) return string.format('%.0f', number) end

local function clock()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end

local known = redis.call('HMGET', state, 'limit', 'used', 'token', 'place', 'now', 'frozen', 'run', 'ttl', 'kind', 'parts', 'ahead', 'told')
if known[9] and known[9] ~= 'permits' then return redis.error_reply('KIND ' .. state .. ' is another kind of limiter') end
local fresh = not known[1]
local limit, used, token = tonumber(known[1] or ARGV[1]), tonumber(known[2] or 0), tonumber(known[3] or 0)
-- The last token before this sync.
local last = token
local place, now, frozen = tonumber(known[4] or 0), tonumber(known[5] or 0), tonumber(known[6] or 0)
-- The server's clock may be set back; ours goes on from where it was.
local time = clock()
local ahead = math.max(tonumber(known[11] or 0), now - time)
now = time + ahead
-- Leases that a server does not know have ended after this time.
local longest = math.max(ttl, tonumber(ARGV[16]), tonumber(known[8] or 0))

-- The entries of the other keys, counted along: sessions, requests, and sessions that hold units.
local all, waiting, holders = redis.call('ZCARD', dues), redis.call('ZCARD', queue), redis.call('ZCARD', oldest)
local function parts(records) return all .. ' ' .. waiting .. ' ' .. holders .. ' ' .. records end
local forgot = parts(redis.call('HLEN', sessions)) ~= (known[10] or '0 0 0 0')
if forgot then
    local due = redis.call('ZRANGE', dues, -1, -1, 'WITHSCORES')[2]
    redis.call('DEL', state, dues, sessions, queue, oldest)
    all, waiting, holders = 0, 0, 0
    fresh, used, frozen = false, 0, math.max(frozen, now + longest, tonumber(due or 0))
end

-- A server that was restarted, or has taken over from another, may know fewer grants than were made. It grants nothing until all
-- leases that it may not know have ended. Checked once, before the first grant of a sync.
--
-- A restart or a takeover begins a new history, with another replication id. So does a long time without a replica, in which the
-- server has missed nothing.
local run, looked, history, took_over = known[7], false, '-', nil
-- Until when leases from before its restart or its takeover may last. The server reports the former in whole seconds, which may be
-- one too many; the latter is noted with the first ask after it, and in a cluster known to clients that have seen the replication id since.
local function unsure()
    local age = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')
    age = (tonumber(age or 0) - 1) * 1000000
    -- It may have evicted the key.
    local evicts = ARGV[17] == '1'
    if evicts then history = history .. 'e' .. (string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)') or '') end
    if took_over or evicts then
        age = tonumber(string.match(' ' .. ARGV[15], ' ' .. history .. ':(%d+)') or 0)
        if KEYS[6] then
            local noted, at = string.match(redis.call('GET', KEYS[6]) or '', '^(%w+) (%d+)$')
            if noted == history then age = math.max(age, time - at) else at = time end
            redis.call('SET', KEYS[6], history .. ' ' .. int(at), 'PX', 604800000)
        end
    end
    return now + longest - math.max(age, 0)
end
local function look_at_server()
    looked = true
    local replication = redis.call('INFO', 'replication')
    history = string.match(replication, 'master_replid:(%w+)') or '-'
    took_over = tonumber(string.match(replication, 'second_repl_offset:(%-?%d+)') or 0) >= 0
    local was, since = string.match(run or '', '^(%w+) ([%w-]+)$')
    if since == history then return end
    local here = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or '0'
    run = here .. ' ' .. history
    if was == here and not took_over then return end
    frozen = fresh and unsure() or math.max(frozen, now + longest)
end
local function is_frozen()
    if not looked then look_at_server() end
    return frozen > now
end
if fresh or forgot then look_at_server() end

-- Records that this sync has read or changed, and sessions whose oldest grant is another one.
local records, changed, told, moved = {}, {}, {}, {}
local function record(id)
    if records[id] == nil then
        local packed = redis.call('HGET', sessions, id)
        records[id] = packed and cmsgpack.unpack(packed) or false
    end
    return records[id]
end

local function dequeue(wish)
    local removed = redis.call('ZREM', queue, wish)
    if removed == 1 then redis.call('HDEL', state, 'w' .. wish) end
    waiting = waiting - removed
    return removed
end

local function finish(id)
    local held = record(id)
    all = all - redis.call('ZREM', dues, id)
    holders = holders - redis.call('ZREM', oldest, id)
    redis.call('HDEL', sessions, id)
    records[id], changed[id], moved[id] = false, nil, nil
    if not held then return end
    used = used - (held[GRANTED] - held[RETURNED])
    if held[QUEUED] > 0 then
        local prefix = id .. ':'
        for _, wish in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
            if string.sub(wish, 1, #prefix) == prefix then dequeue(wish) end
        end
    end
end

local function set_oldest(id, held, grant)
    if grant ~= held[OLDEST] then held[OLDEST], moved[id] = grant, true end
end

local function give(id, held, wish, need, want)
    local free = math.max(limit - used, 0)
    local most = all > 1 and math.max(math.floor(limit / (2 * all)), need) or free
    local units = math.min(want, most, free)
    used = used + units
    token = math.max(token + 1, now)
    held[GRANTED] = held[GRANTED] + units
    table.insert(held[GRANTS], { wish, units, token })
    if held[OLDEST] == 0 then set_oldest(id, held, token) end
    changed[id], told[id] = true, true
end

local function promote()
    while waiting > 0 do
        local head = redis.call('ZRANGE', queue, 0, 0)[1]
        local need, want = string.match(redis.call('HGET', state, 'w' .. head), '(%d+) (%d+)')
        need, want = tonumber(need), tonumber(want)
        local id, wish = string.match(head, '^(.*):(%d+)$')
        local held = record(id)
        local free = math.max(limit - used, 0)
        -- The limit was lowered below its need: its client is notified, and withdraws it.
        if need > limit then told[id] = true end
        if need > free or is_frozen() then return end
        dequeue(head)
        if held then
            held[QUEUED] = held[QUEUED] - 1
            give(id, held, tonumber(wish), need, want)
        end
    end
end

local held, alive = record(session), false
if all > 1 or not held or held[EXPIRES] <= now then
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', dues, '-inf', now, 'LIMIT', 0, SWEEP)) do finish(id) end
    held = record(session)
end
promote()
local waited = waiting > 0

if held and (held[SEQ] < tonumber(ARGV[12]) or seen > last) then
    -- A part of the session was forgotten: an answered sync, or a grant that was reported.
    finish(session)
    held = false
end
if ends then
    finish(session)
elseif held or begin then
    alive = true
    if not held then
        held = { 0, 0, 0, 0, false, '', 0, 0, {}, 0 }
        records[session] = held
    end
    -- An overtaken sync does nothing.
    if seq > held[SEQ] then
        limit = tonumber(ARGV[9]) or limit
        held[SEQ], held[KEEPS], held[CHANNEL] = seq, keeps, ARGV[2]
        held[EXPIRES] = now + ttl
        all = all + redis.call('ZADD', dues, int(held[EXPIRES]), session)
        changed[session] = true
        returned = math.min(math.max(returned, held[RETURNED]), held[GRANTED])
        used = used - (returned - held[RETURNED])
        held[RETURNED] = returned
        local unseen = {}
        for _, grant in ipairs(held[GRANTS]) do
            if grant[3] > seen then table.insert(unseen, grant) end
        end
        held[GRANTS] = unseen
        set_oldest(session, held, tonumber(ARGV[13]) or unseen[1] and unseen[1][3] or 0)
        local wishes = tonumber(ARGV[14])
        for at = FIRST + 4 * wishes, #ARGV do
            held[QUEUED] = held[QUEUED] - dequeue(session .. ':' .. ARGV[at])
        end
        promote()
        for n = 0, wishes - 1 do
            local at = FIRST + 4 * n
            local id, need, want = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
            if id > held[ASKED] then
                held[ASKED] = id
                want = math.max(want, need)
                if need <= math.max(limit - used, 0) and waiting == 0 and not is_frozen() then
                    give(session, held, id, need, want)
                elseif ARGV[at + 3] == '1' and need <= limit then
                    place = place + 1
                    local wish = session .. ':' .. int(id)
                    waiting = waiting + redis.call('ZADD', queue, int(place), wish)
                    redis.call('HSET', state, 'w' .. wish, int(need) .. ' ' .. int(want))
                    held[QUEUED] = held[QUEUED] + 1
                end
            end
        end
    end
end
promote()

for id in pairs(moved) do
    local grant = records[id][OLDEST]
    holders = holders + (grant > 0 and redis.call('ZADD', oldest, int(grant), id) or -redis.call('ZREM', oldest, id))
end
local asked = 0
if waiting > 0 then
    -- Sessions that keep permits without need have to return them: those that have had theirs for long are told first, some at each sync.
    if waited then asked = tonumber(known[12] or 0) end
    for _, id in ipairs(redis.call('ZRANGE', oldest, asked, asked + LOOKOUTS - 1)) do
        local other = record(id)
        if other and other[KEEPS] then told[id] = true end
        asked = asked + 1
    end
end
for id in pairs(changed) do
    if records[id] then redis.call('HSET', sessions, id, cmsgpack.pack(records[id])) end
end

local idle = false
-- The wait for unknown leases is remembered, with its end; a key that was unknown then is known from now on.
if all == 0 then idle = fresh or not is_frozen() end
if idle then
    redis.call('DEL', state, dues, sessions, queue, oldest)
else
    redis.call('HSET', state, 'kind', 'permits', 'limit', int(limit), 'used', int(used), 'token', int(token), 'place', int(place),
        'now', int(now), 'frozen', int(frozen), 'run', run or '', 'ttl', int(longest), 'ahead', int(ahead), 'told', int(asked),
        'parts', parts(all))
    -- If all sessions die, the keys expire soon after the last one, and not before unknown leases have ended.
    local gone = alive and all == 1 and held[EXPIRES] or redis.call('ZRANGE', dues, -1, -1, 'WITHSCORES')[2]
    local left = math.ceil((math.max(frozen, tonumber(gone or 0)) - now) / 1000) + 1
    for _, key in ipairs({ state, dues, sessions }) do redis.call('PEXPIRE', key, left) end
    if waiting > 0 then redis.call('PEXPIRE', queue, left) end
    if holders > 0 then redis.call('PEXPIRE', oldest, left) end
end

local floor = token + 1
if holders == 1 and alive and held[OLDEST] > 0 then
    floor = held[OLDEST]
elseif holders > 0 then
    floor = tonumber(redis.call('ZRANGE', oldest, 0, 0, 'WITHSCORES')[2])
end
local census = { int(limit), int(used), int(waiting), int(all), int(floor), history }
-- After all writes: a message has the reply that its session would get, with "-" for the time of the next sync.
local name = string.match(state, '^[^}]*}')
for id in pairs(told) do
    if id ~= session and records[id] and records[id][CHANNEL] ~= '' then
        local news = { '1', waiting > records[id][QUEUED] and '1' or '0', '-', unpack(census) }
        for _, grant in ipairs(records[id][GRANTS]) do
            for n = 1, 3 do table.insert(news, int(grant[n])) end
        end
        redis.call('PUBLISH', records[id][CHANNEL], name .. ' ' .. id .. '\n' .. table.concat(news, ' '))
    end
end

local answer = { alive and '1' or '0', '0', '', unpack(census) }
if alive then
    held = record(session)
    if waiting > held[QUEUED] then answer[2] = '1' end
    if held[QUEUED] > 0 then
        local first, prefix = frozen > now and frozen or nil, session .. ':'
        for _, wish in ipairs(redis.call('ZRANGE', queue, 0, LOOKOUTS - 1)) do
            if string.sub(wish, 1, #prefix) == prefix then
                for _, id in ipairs(redis.call('ZRANGE', dues, 0, 1)) do
                    if id ~= session then
                        local due = tonumber(redis.call('ZSCORE', dues, id))
                        if not first or due < first then first = due end
                        break
                    end
                end
                break
            end
        end
        if first then answer[3] = int(math.max(first - now, 0)) end
    end
    for _, grant in ipairs(held[GRANTS]) do
        if grant[3] > seen then
            for n = 1, 3 do table.insert(answer, int(grant[n])) end
        end
    end
end
return answer

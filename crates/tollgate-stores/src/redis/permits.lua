-- Permits that many machines share. Carries out one sync; src/remote/backend.rs has the contract of a Backend.
--
-- KEYS, all with one hash tag, of which the first four are gone with the last session:
--   1 hash: "state", packed; by "s<session>" its record, packed; by "w<session>:<request>" the need and want of a request that waits
--   2 sorted set: sessions by the microsecond at which they expire
--   3 sorted set: "<session>:<request>" by place in the queue
--   4 sorted set: sessions that hold units, by the token of their oldest grant with some
--   5 the clock, as in bucket.lua
--   6 not in a cluster: the last history that was asked about, and when that was first
-- 2 and 4 leave out a session that is alone: its record has both.
-- The state counts the entries of the other keys. If a count differs, a key was evicted or deleted: the sync forgets the rest, each
-- session learns that it is lost, and nothing is granted until the last of their leases has ended.
-- ARGV: limit, channel, then the sync: session, seq, begin, ttl, returned, seen, new limit or "", keeps, end, acked, oldest or "",
--   number of requests; the replication ids that the client knows, as "<id>:<microseconds>", each with the time since it knows it;
--   the longest time to live of any process; whether the server may evict keys; for each request id, need, want, queue; the ids that
--   are withdrawn.
-- Answers:
--   alive, others wait, microseconds until the next sync or "", limit, used, waiting, sessions, floor, the replication id or "-",
--   then for each grant: request, units, token.
--
-- The state: limit, used, token, place, now, frozen (until when nothing is granted), longest (time to live), ahead (how much later `now`
-- is than the clock, which may be set back), told (how many of 4 were, about the waiters), kept (until when the keys are), the entries of
-- 2, 3 and 4 with one that is left out; the run id and the replication id of the server; the session that is alone, if one is.
local STATE = 'dddddddddddddsss'
-- A record, then its grants that the client has not seen, and the units and tokens of each.
local RECORD, GRANT = 'dddddddds', 'ddd'
local SEQ, GRANTED, RETURNED, ASKED, KEEPS, EXPIRES, QUEUED, OLDEST, CHANNEL, GRANTS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local LOOKOUTS, SWEEP, FIRST = 64, 64, 18
-- For how many milliseconds the clock's key stays after its last token has passed: a week.
local UNUSED = 604800000
local state, dues, queue, oldest, CLOCK = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local session, seq, begin, ttl = ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1', tonumber(ARGV[6])
local returned, seen, keeps, ends = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[10]), ARGV[11] == '1'

local function int(number) return string.format('%.0f', number) end

local known = redis.call('HMGET', state, 'state', 's' .. session)
local fresh = not known[1]
local limit, used, token, place, now, frozen, longest, ahead, asked, kept, all, waiting, holders, server, since, alone =
    tonumber(ARGV[1]), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '', '', ''
if not fresh then
    limit, used, token, place, now, frozen, longest, ahead, asked, kept, all, waiting, holders, server, since, alone =
        struct.unpack(STATE, known[1])
else
    -- The limiter may have been used before: its tokens grow.
    token = tonumber(redis.call('GET', CLOCK) or 0)
end
-- The last token before this sync.
local last = token
-- The server's clock may be set back; ours goes on from where it was.
local time = redis.call('TIME')
time = time[1] * 1000000 + time[2]
ahead = math.max(ahead, now - time)
now = time + ahead
-- Leases that a server does not know have ended after this time.
longest = math.max(ttl, tonumber(ARGV[16]), longest)

-- Records that this sync has read or changed, and sessions whose oldest grant is another one.
local records, changed, told, moved = {}, {}, {}, {}
local function unpacked(packed)
    if not packed then return false end
    local held, at = { struct.unpack(RECORD, packed) }, nil
    at, held[GRANTS] = held[GRANTS], {}
    while at <= #packed do
        local wish, units, number
        wish, units, number, at = struct.unpack(GRANT, packed, at)
        table.insert(held[GRANTS], { wish, units, number })
    end
    return held
end
local function record(id)
    if records[id] == nil then records[id] = unpacked(redis.call('HGET', state, 's' .. id)) end
    return records[id]
end
records[session] = unpacked(known[2])

-- A key without entries need not be there, unless the state is not.
local function differs(key, entries) return (fresh or entries > 0) and redis.call('ZCARD', key) ~= entries end
local forgot = differs(queue, waiting)
if alone ~= '' then forgot = forgot or not record(alone) else forgot = forgot or differs(dues, all) or differs(oldest, holders) end
if forgot then
    local due = alone ~= '' and record(alone) and record(alone)[EXPIRES] or redis.call('ZRANGE', dues, -1, -1, 'WITHSCORES')[2]
    redis.call('DEL', state, dues, queue, oldest)
    records, all, waiting, holders, alone, kept = { [session] = false }, 0, 0, 0, '', 0
    fresh, used, frozen = false, 0, math.max(frozen, now + longest, tonumber(due or 0))
end

-- A server that was restarted, or has taken over from another, may know fewer grants than were made. It grants nothing until all
-- leases that it may not know have ended. Checked once, before the first grant of a sync.
--
-- A restart or a takeover begins a new history, with another replication id. So does a long time without a replica, in which the
-- server has missed nothing.
local looked, history = false, '-'
local function look_at_server()
    looked = true
    local replication = redis.call('INFO', 'replication')
    history = since
    if since ~= '' and string.find(replication, 'master_replid:' .. since, 1, true) then return end
    history = string.match(replication, 'master_replid:(%w+)') or '-'
    local took_over = tonumber(string.match(replication, 'second_repl_offset:(%-?%d+)') or 0) >= 0
    if since == history then return end
    local was = server
    server, since = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or '0', history
    if was == server and not took_over then return end
    if not fresh then
        frozen = math.max(frozen, now + longest)
        return
    end
    -- Until when leases from before its restart or its takeover may last. The server reports the former in whole seconds, which may be
    -- one too many; the latter is noted with the first ask after it, and in a cluster known to clients that have seen the replication id
    -- since.
    local age = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')
    age = (tonumber(age or 0) - 1) * 1000000
    -- It may have evicted the key.
    local evicts = ARGV[17] == '1'
    if evicts then history = history .. 'e' .. (string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)') or '') end
    if took_over or evicts then
        age = tonumber(string.match(' ' .. ARGV[15], ' ' .. history .. ':(%d+)') or 0)
        if KEYS[6] then
            local noted, at = string.match(redis.call('GET', KEYS[6]) or '', '^(%w+) (%d+)$')
            -- Noted in the future, before the clock was set back: noted anew.
            if noted == history and tonumber(at) <= time then age = math.max(age, time - at) else at = time end
            redis.call('SET', KEYS[6], history .. ' ' .. int(at), 'PX', 604800000)
        end
    end
    frozen = now + longest - math.max(age, 0)
end
local function is_frozen()
    if not looked then look_at_server() end
    return frozen > now
end
if fresh or forgot then look_at_server() end

-- Adds to a sorted set of that many entries. A new key gets its expiry at the end.
local function add(key, entries, score, member)
    if entries == 0 then kept = 0 end
    return redis.call('ZADD', key, score, member)
end
if alone ~= '' and alone ~= session then
    local other = record(alone)
    add(dues, 0, other[EXPIRES], alone)
    if other[OLDEST] > 0 then add(oldest, 0, other[OLDEST], alone) end
    alone = ''
end

local function dequeue(wish)
    local removed = redis.call('ZREM', queue, wish)
    if removed == 1 then redis.call('HDEL', state, 'w' .. wish) end
    waiting = waiting - removed
    return removed
end

local function finish(id)
    local held = record(id)
    if id == alone then
        all, holders, alone = 0, 0, ''
    else
        all = all - redis.call('ZREM', dues, id)
        holders = holders - redis.call('ZREM', oldest, id)
    end
    redis.call('HDEL', state, 's' .. id)
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
if alone ~= '' then
    if held[EXPIRES] <= now then finish(session) end
    held = record(session)
elseif all > 0 then
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
        held = { 0, 0, 0, 0, 0, 0, 0, 0, '', {} }
        records[session] = held
    end
    -- An overtaken sync does nothing.
    if seq > held[SEQ] then
        limit = tonumber(ARGV[9]) or limit
        held[SEQ], held[KEEPS], held[CHANNEL] = seq, keeps, ARGV[2]
        held[EXPIRES] = now + ttl
        if all == 0 then alone, all = session, 1 end
        if alone == '' then all = all + add(dues, all, held[EXPIRES], session) end
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
                    waiting = waiting + add(queue, waiting, place, wish)
                    redis.call('HSET', state, 'w' .. wish, int(need) .. ' ' .. int(want))
                    held[QUEUED] = held[QUEUED] + 1
                end
            end
        end
    end
end
promote()

if alone == '' and all == 1 and alive and held[SEQ] > 0 then
    redis.call('DEL', dues, oldest)
    alone, moved[session] = session, true
end
for id in pairs(moved) do
    local grant = records[id][OLDEST]
    if id == alone then
        holders = grant > 0 and 1 or 0
    else
        holders = holders + (grant > 0 and add(oldest, holders, grant, id) or -redis.call('ZREM', oldest, id))
    end
end
if not waited or waiting == 0 or alone ~= '' then asked = 0 end
if waiting > 0 and alone == '' then
    -- Sessions that keep permits without need have to return them: those that have had theirs for long are told first, some at each sync.
    for _, id in ipairs(redis.call('ZRANGE', oldest, asked, asked + LOOKOUTS - 1)) do
        local other = record(id)
        if other and other[KEEPS] == 1 then told[id] = true end
        asked = asked + 1
    end
end
for id in pairs(changed) do
    local held = records[id]
    if held then
        local packed = { struct.pack(RECORD, unpack(held, 1, CHANNEL)) }
        for _, grant in ipairs(held[GRANTS]) do table.insert(packed, struct.pack(GRANT, unpack(grant))) end
        redis.call('HSET', state, 's' .. id, table.concat(packed))
    end
end

-- What outlives the keys of a limiter: the latest token of all limiters that share the clock's key.
if token > last and token > tonumber(redis.call('GET', CLOCK) or 0) then
    redis.call('SET', CLOCK, int(token), 'PX', int(math.ceil(math.max(token - time, 0) / 1000) + UNUSED))
end

local idle = false
-- The wait for unknown leases is remembered, with its end; a key that was unknown then is known from now on.
if all == 0 then idle = fresh or not is_frozen() end
if idle then
    redis.call('DEL', state, dues, queue, oldest)
else
    -- If all sessions die, the keys expire soon after the last one, and not before unknown leases have ended.
    local due = alone ~= '' and held[EXPIRES] or tonumber(redis.call('ZRANGE', dues, -1, -1, 'WITHSCORES')[2] or 0)
    local gone = math.max(frozen, due, now)
    local most = gone + (gone - now) / 4
    local expire = kept < gone or kept > most
    if expire then kept = (gone + most) / 2 end
    redis.call('HSET', state, 'state', struct.pack(STATE, limit, used, token, place, now, frozen, longest, ahead, asked, kept, all, waiting,
        holders, server, since, alone))
    if expire then
        local left = math.ceil((kept - now) / 1000) + 1
        for _, key in ipairs({ state, dues, queue, oldest }) do redis.call('PEXPIRE', key, left) end
    end
end

local floor = token + 1
if holders == 1 and alive and held[OLDEST] > 0 then
    floor = held[OLDEST]
elseif holders > 0 then
    floor = tonumber(redis.call('ZRANGE', oldest, 0, 0, 'WITHSCORES')[2])
end
local census = { limit, used, waiting, all, floor, history }
-- After all writes: a message has the reply that its session would get, with "-" for the time of the next sync.
for id in pairs(told) do
    if id ~= session and records[id] and records[id][CHANNEL] ~= '' then
        local news = { '1', waiting > records[id][QUEUED] and '1' or '0', '-', unpack(census) }
        for n = 4, 8 do news[n] = int(news[n]) end
        for _, grant in ipairs(records[id][GRANTS]) do
            for n = 1, 3 do table.insert(news, int(grant[n])) end
        end
        local name = string.match(state, '^[^}]*}')
        redis.call('PUBLISH', records[id][CHANNEL], name .. ' ' .. id .. '\n' .. table.concat(news, ' '))
    end
end

local answer = { alive and 1 or 0, 0, '', unpack(census) }
if alive then
    held = record(session)
    if waiting > held[QUEUED] then answer[2] = 1 end
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
        if first then answer[3] = math.max(first - now, 0) end
    end
    for _, grant in ipairs(held[GRANTS]) do
        if grant[3] > seen then
            for n = 1, 3 do table.insert(answer, grant[n]) end
        end
    end
end
return answer

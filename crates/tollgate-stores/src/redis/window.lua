-- A sliding window that many machines share, counted in segments. Carries out one sync.
--
-- A segment counts until all of it has left the window: no span of the window's length exceeds the limit, and units come back up to
-- one segment late.
--
-- A session that finds too little, and waits, has a place in the queue as long as it asks again within its time to live. Later places,
-- and requests that do not wait, get the rest beyond the needs of the places before them.
--
-- KEYS, with one hash tag: 1 hash: by the number of a segment, the units taken in it; and kind, token, now, segment (its
--   length), ahead (how much later `now` is than the clock, which may be set back); and, once the limit was changed, edition and
--   limit; and, while sessions wait, line, packed: for each place its session, request, need, expiry, and the channel
--   for the message that the limit was raised; 2 hash: the last grant of this session; 3 the clock, as in bucket.lua.
-- ARGV: limit, length of a segment in microseconds, segments, then as in bucket.lua; then a channel, and the ids of withdrawn
--   requests.
-- Answers as bucket.lua does; a window of another length under the same key is an error.
local limit, length, segments = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local seq, begin, ttl = tonumber(ARGV[5]), ARGV[6] == '1', tonumber(ARGV[7])
local charged, seen, wish = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[11])
local need, want = tonumber(ARGV[12]), tonumber(ARGV[13])
local asked_edition, REMEMBERED = tonumber(ARGV[15]), tonumber(ARGV[19])

local SESSION, WISH, NEED, EXPIRES, CHANNEL = 1, 2, 3, 4, 5
local PACE = 1000
-- For how many milliseconds the clock's key stays after its last token has passed: a week.
local UNUSED = 604800000
local CLOCK = KEYS[3]

local function int(number) return string.format('%.0f', number) end

local counts, total, token, now, known, ahead, edition, kept, kind = {}, 0, 0, 0, nil, 0, 0, nil, nil
local session, ends, packed = ARGV[4], ARGV[10] == '1', nil
local fields = redis.call('HGETALL', KEYS[1])
for n = 1, #fields, 2 do
    local name, value = fields[n], tonumber(fields[n + 1])
    if name == 'kind' then kind = fields[n + 1]
    elseif name == 'token' then token = value
    elseif name == 'now' then now = value
    elseif name == 'segment' then known = value
    elseif name == 'ahead' then ahead = value
    elseif name == 'edition' then edition = value
    elseif name == 'limit' then kept = value
    elseif name == 'line' then packed = fields[n + 1]
    else counts[tonumber(name)] = value end
end
if kind and kind ~= 'window' then return redis.error_reply('KIND ' .. KEYS[1] .. ' is another kind of limiter') end
if known and known ~= length then return redis.error_reply('WINDOW another length is in use under this key') end
-- A session outlives a window that was empty meanwhile, and its next token has to be greater than those that it has seen.
if not kind then
    token = tonumber(redis.call('GET', CLOCK) or 0)
    now = token
end
local time = redis.call('TIME')
time = time[1] * 1000000 + time[2]
-- The server's clock may be set back; ours goes on from where it was.
ahead = math.max(ahead, now - time)
now = time + ahead
-- What outlives the keys of a limiter: the latest token of all limiters that share the clock's key.
local function note_token()
    if token <= tonumber(redis.call('GET', CLOCK) or 0) then return end
    redis.call('SET', CLOCK, int(token), 'PX', int(math.ceil(math.max(token - time, 0) / 1000) + UNUSED))
end
local differs = edition == 0 and kept and kept ~= limit
if edition > asked_edition then limit = kept else edition = asked_edition end
local current = math.floor(now / length)
local gone = {}
for number, count in pairs(counts) do
    if number < current - segments then
        table.insert(gone, int(number))
        counts[number] = nil
    else
        total = total + count
    end
end
if #gone > 0 then redis.call('HDEL', KEYS[1], unpack(gone)) end
local line, place = {}, nil
for _, other in ipairs(packed and cmsgpack.unpack(packed) or {}) do
    if other[EXPIRES] > now and not (ends and other[SESSION] == session) then
        table.insert(line, other)
        if other[SESSION] == session then place = #line end
    end
end
-- The needs of the first places.
local function needed(places)
    local sum = 0
    for n = 1, places do sum = sum + line[n][NEED] end
    return sum
end
local function leave()
    table.remove(line, place)
    place = nil
end
local function free() return math.max(limit - total, 0) end
local function take(n)
    -- No count of zero: a request would wait for its segment.
    if n == 0 then return end
    counts[current] = (counts[current] or 0) + n
    total = total + n
end

local last = redis.call('HMGET', KEYS[2], 'seq', 'charged', 'asked', 'units', 'token')
local answer, raised = { '0', '', '', '', '', '', '', '', '0', differs and '1' or '0' }, false
if ends then
    redis.call('DEL', KEYS[2])
elseif last[1] or begin then
    answer[1] = '1'
    local asked, units, fence = tonumber(last[3] or 0), tonumber(last[4] or 0), tonumber(last[5] or 0)
    if seq > tonumber(last[1] or 0) then
        local debt = math.max(charged - tonumber(last[2] or 0), 0)
        if debt > 0 then take(debt) end
        if ARGV[16] ~= '' and edition == asked_edition then
            raised = tonumber(ARGV[16]) > limit
            limit, edition = tonumber(ARGV[16]), math.max(edition + 1, now)
            -- A waiter that needs more than that is refused when it asks again, and blocks no other until then.
            local all = line
            line, place = {}, nil
            for _, other in ipairs(all) do
                if other[NEED] <= limit then
                    table.insert(line, other)
                    if other[SESSION] == session then place = #line end
                end
            end
        end
        local waits = wish > 0 and ARGV[14] == '1'
        if place then
            line[place][EXPIRES] = now + ttl
            for n = 21, #ARGV do
                if place and not waits and tonumber(ARGV[n]) == line[place][WISH] then leave() end
            end
        end
        if wish > asked then
            local before = needed(waits and place and place - 1 or #line)
            if need + before <= free() then
                local others = needed(#line) - (place and line[place][NEED] or 0)
                units = math.max(math.min(want, free() - others), need)
                if place and waits then leave() end
                take(units)
                token = math.max(token + 1, now)
                asked, fence = wish, token
                note_token()
            elseif need <= limit then
                if waits then
                    place = place or #line + 1
                    line[place] = { session, wish, need, now + ttl, ARGV[20] }
                end
                -- The oldest units leave first. It fits once the rest is at most the limit less the need and less the needs of earlier places. Only
                -- their bound is known: they fill a window. They have to ask first.
                local numbers, left, room = {}, total, math.max(limit - need - before, 0)
                local wait = 0
                for number in pairs(counts) do table.insert(numbers, number) end
                table.sort(numbers)
                for _, number in ipairs(numbers) do
                    left = left - counts[number]
                    if left <= room then
                        wait = (number + segments + 1) * length - now
                        break
                    end
                end
                if before > 0 then wait = math.max(wait, length, PACE) end
                answer[2] = int(wait)
            end
        end
        redis.call('HSET', KEYS[2], 'seq', int(seq), 'charged', int(charged), 'asked', int(asked), 'units', int(units),
            'token', int(fence))
        redis.call('PEXPIRE', KEYS[2], math.ceil(ttl / 1000))
    end
    if fence > seen then
        for _, number in ipairs({ asked, units, fence }) do table.insert(answer, int(number)) end
    end
end
answer[3], answer[4], answer[9] = int(limit), int(math.min(total, limit)), int(#line)
if edition > asked_edition then
    answer[5], answer[6], answer[7], answer[8] = int(edition), int(limit), int(length), int(segments)
end
if packed and #line == 0 then redis.call('HDEL', KEYS[1], 'line') end
if total > 0 or edition > 0 or #line > 0 then
    if counts[current] then redis.call('HSET', KEYS[1], int(current), int(counts[current])) end
    redis.call('HSET', KEYS[1], 'limit', int(limit), 'kind', 'window', 'token', int(token), 'now', int(now), 'segment', int(length), 'ahead', int(ahead))
    local left = math.ceil((segments + 1) * length / 1000) + 1
    if #line > 0 then
        redis.call('HSET', KEYS[1], 'line', cmsgpack.pack(line))
        for _, other in ipairs(line) do left = math.max(left, math.ceil((other[EXPIRES] - now) / 1000) + 1) end
    end
    if edition > 0 then
        redis.call('HSET', KEYS[1], 'edition', int(edition))
        left = math.max(left, REMEMBERED)
    end
    redis.call('PEXPIRE', KEYS[1], left)
else
    redis.call('DEL', KEYS[1])
end
if raised then
    local name = string.match(KEYS[1], '^[^}]*}')
    for _, other in ipairs(line) do
        if other[SESSION] ~= session then redis.call('PUBLISH', other[CHANNEL], name .. ' ' .. other[SESSION] .. '\n') end
    end
end
return answer

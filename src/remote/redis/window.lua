-- A sliding window that many machines share, counted in segments. Carries out one step.
--
-- A segment counts until all of it has left the window: no span of the window's length holds more than the limit, and room
-- comes back up to one segment late.
--
-- KEYS, with one hash tag: 1 hash: by the number of a segment, how many were taken in it; and token, now, segment (its
--   length), ahead (how much later `now` is than the clock, which may be set back); and, once the limit was changed, edition and
--   limit; 2 hash: what this session was given last.
-- ARGV: limit, length of a segment in microseconds, segments, then as in bucket.lua.
-- Answers as bucket.lua does; a window of another length under the same key is an error.
local limit, length, segments = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local seq, begin, ttl = tonumber(ARGV[5]), ARGV[6] == '1', tonumber(ARGV[7])
local charged, seen, wish = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[11])
local need, want = tonumber(ARGV[12]), tonumber(ARGV[13])
local asked_edition, REMEMBERED = tonumber(ARGV[15]), tonumber(ARGV[19])

local function int(number) return string.format('%.0f', number) end

local counts, total, token, now, known, ahead, edition, kept = {}, 0, 0, 0, nil, 0, 0, nil
local fields = redis.call('HGETALL', KEYS[1])
for n = 1, #fields, 2 do
    local name, value = fields[n], tonumber(fields[n + 1])
    if name == 'token' then token = value
    elseif name == 'now' then now = value
    elseif name == 'segment' then known = value
    elseif name == 'ahead' then ahead = value
    elseif name == 'edition' then edition = value
    elseif name == 'limit' then kept = value
    else counts[tonumber(name)] = value end
end
if known and known ~= length then return redis.error_reply('WINDOW another length is in use under this key') end
local time = redis.call('TIME')
time = time[1] * 1000000 + time[2]
-- The server's clock may be set back; ours goes on from where it was.
ahead = math.max(ahead, now - time)
now = time + ahead
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
local function free() return math.max(limit - total, 0) end
local function take(n)
    counts[current] = (counts[current] or 0) + n
    total = total + n
end

local last = redis.call('HMGET', KEYS[2], 'seq', 'charged', 'asked', 'units', 'token')
local answer = { '0', '', '', '', '', '', '', '' }
if ARGV[10] == '1' then
    redis.call('DEL', KEYS[2])
elseif last[1] or begin then
    answer[1] = '1'
    local asked, units, fence = tonumber(last[3] or 0), tonumber(last[4] or 0), tonumber(last[5] or 0)
    if seq > tonumber(last[1] or 0) then
        local debt = math.max(charged - tonumber(last[2] or 0), 0)
        if debt > 0 then take(debt) end
        if ARGV[16] ~= '' then
            limit, edition = tonumber(ARGV[16]), math.max(edition + 1, now)
        end
        if wish > asked then
            if need <= free() then
                units = math.min(math.max(want, need), free())
                take(units)
                token = math.max(token + 1, now)
                asked, fence = wish, token
            elseif need <= limit then
                -- The oldest leave first; there is room when no more than the limit less the need is left.
                local numbers, left = {}, total
                for number in pairs(counts) do table.insert(numbers, number) end
                table.sort(numbers)
                for _, number in ipairs(numbers) do
                    left = left - counts[number]
                    if left + need <= limit then
                        answer[2] = int((number + segments + 1) * length - now)
                        break
                    end
                end
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
answer[3], answer[4] = int(limit), int(math.min(total, limit))
if edition > asked_edition then
    answer[5], answer[6], answer[7], answer[8] = int(edition), int(limit), int(length), int(segments)
end
if total > 0 or edition > 0 then
    if counts[current] then redis.call('HSET', KEYS[1], int(current), int(counts[current])) end
    redis.call('HSET', KEYS[1], 'token', int(token), 'now', int(now), 'segment', int(length), 'ahead', int(ahead))
    local left = math.ceil((segments + 1) * length / 1000) + 1
    if edition > 0 then
        redis.call('HSET', KEYS[1], 'edition', int(edition), 'limit', int(limit))
        left = math.max(left, REMEMBERED)
    end
    redis.call('PEXPIRE', KEYS[1], left)
else
    redis.call('DEL', KEYS[1])
end
return answer

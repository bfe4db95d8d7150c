-- The rates and windows of a key that many machines share, in whole numbers. Carries out one step: corrections, and then admissions, each
-- from all legs or from none.
--
-- KEYS, with one hash tag: 1 hash: at, ahead (how much later `at` is than the clock, which may be set back), until (when all legs are as
--   new), and by "leg:<name>" what was taken of it, packed: { price, gain, brim, level, when that was, since when it counts by this rule }
--   of a rate, { length of a segment, number, units, ... } of a window; 2 hash: last, packed: the number of the last step of this client that changed something, and its answer.
-- ARGV: the number of the step, for how many milliseconds its answer is remembered, the numbers of legs, corrections and admissions; then
--   for each leg its name and price, gain, brim, or its name, limit, length of a segment and "w"; for each correction the instant, and
--   for each leg the charged and the actual units; for each admission the units of each leg.
-- Answers, as strings: the instant, then for each admission the leg that refuses or "0", and the microseconds until it admits or "".
local SEGMENTS, MOST = 64, 2251799813685248
local seq, remember, size = ARGV[1], ARGV[2], tonumber(ARGV[3])
local corrections, takes = tonumber(ARGV[4]), tonumber(ARGV[5])

local last = redis.call('HGET', KEYS[2], 'last')
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

local names = { 'at', 'ahead', 'until' }
for n = 1, size do table.insert(names, 'leg:' .. ARGV[2 + 4 * n]) end
local known = redis.call('HMGET', KEYS[1], unpack(names))
local time = redis.call('TIME')
time = time[1] * 1000000 + time[2]
-- The server's clock may be set back; ours goes on from where it was.
local at = tonumber(known[1] or 0)
local ahead = math.max(tonumber(known[2] or 0), at - time)
local now = time + ahead
local over = tonumber(known[3] or 0)

-- Another quota has another price: taken tokens stay taken.
local function convert(level, old, new)
    if old == new then return level end
    local whole = math.floor(level / old)
    local rest = (level - whole * old) * new
    local parts = math.floor(rest / old)
    if rest >= 2 * MOST then
        parts = parts + 2
    elseif parts * old < rest then
        parts = parts + 1
    end
    return math.min(whole * new + math.min(parts, new), MOST)
end

-- Corrections alone are of admissions by a rule that may be an old one.
local adopts = takes > 0

local function rate(packed, price, gain, brim)
    local leg, since = { level = 0 }, now
    if packed and #packed == 6 then
        -- Time until now has passed by the quota before. Compared first: the product may exceed the exact numbers of a double.
        local level, passed = packed[4], now - packed[5]
        if passed >= math.ceil(level / packed[2]) then level = 0 else level = level - passed * packed[2] end
        if not adopts then price, gain, brim = packed[1], packed[2], packed[3] end
        if price == packed[1] and gain == packed[2] and brim == packed[3] then since = packed[6] end
        leg.level = convert(level, packed[1], price)
    end
    function leg.wait(n)
        if n == 0 then return 0 end
        local most = brim - n * price
        if most < 0 then return nil end
        return math.ceil(math.max(leg.level - most, 0) / gain)
    end
    function leg.add(n) leg.level = math.min(leg.level + n * price, MOST) end
    function leg.give(n, charged, taken)
        local left, gone = math.min(charged * price, MOST), now - taken
        -- All that was taken before has come back, or was taken by another rule.
        if taken < since or gone >= math.ceil(left / gain) then return end
        leg.level = math.max(leg.level - math.min(n * price, left - gone * gain), 0)
    end
    function leg.pack()
        local left = math.ceil(leg.level / gain)
        if left == 0 then return nil end
        return { price, gain, brim, leg.level, now, since }, left
    end
    return leg
end

local function window(packed, limit, length)
    local leg, counts, total = {}, {}, 0
    if packed and #packed ~= 6 then
        local old = packed[1]
        if not adopts then length = old end
        for n = 2, #packed, 2 do
            if packed[n] >= math.floor(now / old) - SEGMENTS then
                total = total + packed[n + 1]
                if old == length then counts[packed[n]] = packed[n + 1] end
            end
        end
        -- The units of a window of another length count as taken now.
        if old ~= length and total > 0 then counts[math.floor(now / length)] = total end
    end
    local current = math.floor(now / length)
    local function numbers()
        local all = {}
        for number in pairs(counts) do table.insert(all, number) end
        table.sort(all)
        return all
    end
    function leg.wait(n)
        if n == 0 then return 0 end
        if n > limit then return nil end
        local left, room = total, limit - n
        if left <= room then return 0 end
        for _, number in ipairs(numbers()) do
            left = left - counts[number]
            if left <= room then return (number + SEGMENTS + 1) * length - now end
        end
    end
    function leg.add(n)
        if n == 0 then return end
        counts[current] = (counts[current] or 0) + n
        total = total + n
    end
    function leg.give(n, _, taken)
        local number = math.floor(taken / length)
        local back = math.min(n, counts[number] or 0)
        if back == 0 then return end
        counts[number] = counts[number] - back
        total = total - back
    end
    function leg.pack()
        if total == 0 then return nil end
        -- An odd number of entries: a rate has six.
        local all, newest = { length }, 0
        for _, number in ipairs(numbers()) do
            if counts[number] > 0 then
                table.insert(all, number)
                table.insert(all, counts[number])
                newest = number
            end
        end
        return all, (newest + SEGMENTS + 1) * length - now
    end
    return leg
end

local legs, next = {}, 6
for n = 1, size do
    local packed = known[3 + n] and cmsgpack.unpack(known[3 + n])
    local one, two, three = tonumber(ARGV[next + 1]), tonumber(ARGV[next + 2]), ARGV[next + 3]
    legs[n] = three == 'w' and window(packed, one, two) or rate(packed, one, two, tonumber(three))
    next = next + 4
end
for _ = 1, corrections do
    local taken = tonumber(ARGV[next])
    for n = 1, size do
        local charged, actual = tonumber(ARGV[next + 2 * n - 1]), tonumber(ARGV[next + 2 * n])
        if actual < charged then
            legs[n].give(charged - actual, charged, taken)
        else
            legs[n].add(actual - charged)
        end
    end
    next = next + 1 + 2 * size
end
local answer, changed = { int(now) }, corrections > 0
for _ = 1, takes do
    local refused, longest, units = 0, 0, {}
    for n = 1, size do
        units[n] = tonumber(ARGV[next + n - 1])
        local wait = legs[n].wait(units[n])
        if not wait then
            refused, longest = n, nil
            break
        end
        if wait > longest then refused, longest = n, wait end
    end
    if refused == 0 then
        for n = 1, size do legs[n].add(units[n]) end
        changed = true
    end
    table.insert(answer, int(refused))
    table.insert(answer, longest and int(longest) or '')
    next = next + size
end
if changed then
    local state = { 'at', int(now), 'ahead', int(ahead) }
    for n = 1, size do
        local packed, left = legs[n].pack()
        if packed then
            table.insert(state, names[3 + n])
            table.insert(state, cmsgpack.pack(packed))
            over = math.max(over, now + left)
        elseif known[3 + n] then
            redis.call('HDEL', KEYS[1], names[3 + n])
        end
    end
    if over > now then
        table.insert(state, 'until')
        table.insert(state, int(over))
        redis.call('HSET', KEYS[1], unpack(state))
        redis.call('PEXPIRE', KEYS[1], math.ceil((over - now) / 1000) + 1)
    else
        redis.call('DEL', KEYS[1])
    end
    redis.call('HSET', KEYS[2], 'last', cmsgpack.pack({ seq, unpack(answer) }))
    redis.call('PEXPIRE', KEYS[2], remember)
end
return answer

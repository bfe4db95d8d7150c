-- The rates and windows of a key that many machines share, in whole numbers. Carries out one step: corrections, and then admissions, each
-- from all legs or from none.
--
-- KEYS, with one hash tag, both packed: 1 { at, ahead (how much later `at` is than the clock, which may be set back), until (when all legs
--   are as new), { by name what was taken of a leg } }: { price, gain, brim, level, when that was, since when it counts by this rule } of a
--   rate, { length of a segment, number, units, ... } of a window, in order; 2 the number of the last step of this client that changed
--   something, and its answer.
-- ARGV: the number of the step, for how many milliseconds its answer is remembered, the numbers of legs, corrections and admissions; then
--   for each leg its name and price, gain, brim, or its name, limit, length of a segment and "w"; for each correction the instant, and
--   for each leg the charged and the actual units; for each admission the units of each leg.
-- Answers, as strings: the instant, then for each admission the leg that refuses or "0", and the microseconds until it admits or "".
local SEGMENTS, MOST = 64, 2251799813685248
local seq, remember, size = ARGV[1], ARGV[2], tonumber(ARGV[3])
local corrections, takes = tonumber(ARGV[4]), tonumber(ARGV[5])
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

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

local known = redis.call('GET', KEYS[1])
local at, ahead, over, taken = 0, 0, 0, {}
if known then at, ahead, over, taken = unpack(cmsgpack.unpack(known)) end
local time = redis.call('TIME')
time = time[1] * 1000000 + time[2]
-- The server's clock may be set back; ours goes on from where it was.
ahead = max(ahead, at - time)
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

local legs, limits, next = {}, {}, 6
for n = 1, size do
    local old, one, two, three = taken[ARGV[next]], tonumber(ARGV[next + 1]), tonumber(ARGV[next + 2]), ARGV[next + 3]
    if old and not adopts and (three == 'w') == (#old == 6) then
        -- A leg of another kind has its name now.
        legs[n] = false
    elseif three == 'w' then
        legs[n], limits[n] = window(old, two), one
    else
        legs[n] = rate(old, one, two, tonumber(three))
    end
    next = next + 4
end
for _ = 1, corrections do
    local when = tonumber(ARGV[next])
    for n = 1, size do
        local charged, actual = tonumber(ARGV[next + 2 * n - 1]), tonumber(ARGV[next + 2 * n])
        if legs[n] and actual < charged then
            give(legs[n], charged - actual, charged, when)
        elseif legs[n] then
            add(legs[n], actual - charged)
        end
    end
    next = next + 1 + 2 * size
end
local answer, changed = { int(now) }, corrections > 0
for _ = 1, takes do
    local refused, longest = 0, 0
    for n = 1, size do
        local time = wait(legs[n], tonumber(ARGV[next + n - 1]), limits[n])
        if not time then
            refused, longest = n, nil
            break
        end
        if time > longest then refused, longest = n, time end
    end
    if refused == 0 then
        for n = 1, size do add(legs[n], tonumber(ARGV[next + n - 1])) end
        changed = true
    end
    answer[#answer + 1] = int(refused)
    answer[#answer + 1] = longest and int(longest) or ''
    next = next + size
end
if changed then
    for n = 1, size do
        if legs[n] then
            local left = rest(legs[n])
            taken[ARGV[2 + 4 * n]] = left > 0 and legs[n] or nil
            over = max(over, now + left)
        end
    end
    if over > now then
        redis.call('SET', KEYS[1], cmsgpack.pack({ now, ahead, over, taken }), 'PX', ceil((over - now) / 1000) + 1)
    else
        redis.call('DEL', KEYS[1])
    end
    redis.call('SET', KEYS[2], cmsgpack.pack({ seq, unpack(answer) }), 'PX', remember)
end
return answer

-- A token bucket that many machines share, in whole numbers. Carries out one step.
--
-- The level is what was taken and has not come back, in parts of a token: a token adds `price`, a microsecond takes off `gain`.
-- That is GCRA with the theoretical arrival time now + level / gain, without rounding.
--
-- KEYS, with one hash tag: 1 hash: level, at, token, price; 2 hash: what this session was given last, so that a step that is tried
--   again takes nothing twice.
-- ARGV: price, gain, brim, then the step: session, seq, begin, ttl, charged, seen, end, wish, need, want.
-- Answers: alive, ask again in so many microseconds or "", burst, taken, then the grant, if there is one: wish, units, token.
local price, gain, brim = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local seq, begin, ttl = tonumber(ARGV[5]), ARGV[6] == '1', tonumber(ARGV[7])
local charged, seen, wish = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[11])
local need, want = tonumber(ARGV[12]), tonumber(ARGV[13])

local function int(number) return string.format('%.0f', number) end

local state = redis.call('HMGET', KEYS[1], 'level', 'at', 'token', 'price')
local level, at, token = tonumber(state[1] or 0), tonumber(state[2] or 0), tonumber(state[3] or 0)
local time = redis.call('TIME')
local now = math.max(at, time[1] * 1000000 + time[2])
-- Compared first, since the product of a long time may be more than a double holds exactly.
if now - at >= math.ceil(level / gain) then level = 0 else level = level - (now - at) * gain end
-- Another quota has another price: what was taken stays taken, in whole tokens.
if state[4] and tonumber(state[4]) ~= price then level = math.min(math.ceil(level / tonumber(state[4])) * price, 2 * brim) end
local function free() return math.max(math.floor((brim - level) / price), 0) end

local last = redis.call('HMGET', KEYS[2], 'seq', 'charged', 'asked', 'units', 'token')
local answer = { '0', '', int(math.floor(brim / price)), '0' }
if ARGV[10] == '1' then
    redis.call('DEL', KEYS[2])
elseif last[1] or begin then
    answer[1] = '1'
    local asked, units, fence = tonumber(last[3] or 0), tonumber(last[4] or 0), tonumber(last[5] or 0)
    if seq > tonumber(last[1] or 0) then
        local debt = math.max(charged - tonumber(last[2] or 0), 0)
        -- Debts beyond twice the brim are forgiven.
        if debt > 0 then level = math.min(level + debt * price, 2 * brim) end
        if wish > asked then
            if need <= free() then
                units = math.min(math.max(want, need), free())
                level = level + units * price
                token = math.max(token + 1, now)
                asked, fence = wish, token
            elseif need * price <= brim then
                answer[2] = int(math.ceil((level + need * price - brim) / gain))
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
answer[4] = int(math.floor(brim / price) - math.min(free(), math.floor(brim / price)))
if level > 0 then
    redis.call('HSET', KEYS[1], 'level', int(level), 'at', int(now), 'token', int(token), 'price', int(price))
    -- Once it is full again nothing is lost with it.
    redis.call('PEXPIRE', KEYS[1], math.ceil(level / gain / 1000) + 1)
else
    redis.call('DEL', KEYS[1])
end
return answer

-- A token bucket that many machines share, in whole numbers. Carries out one step.
--
-- The level is what was taken and has not come back, in parts of a token: a token adds `price`, a microsecond takes off `gain`.
-- That is GCRA with the theoretical arrival time now + level / gain, without rounding.
--
-- KEYS, with one hash tag: 1 hash: level, at, token, price; 2 hash: what this session was given last, so that a step that is tried
--   again takes nothing twice.
-- ARGV: price, gain, brim, then the step: session, seq, begin, ttl, charged, seen, end, wish, need, want,
--   queue: whether the tokens may be granted for later.
-- Answers: alive, in so many microseconds or "", burst, taken, then the grant, if there is one: wish, units, token. The second
--   says when to ask again, or when what was granted may be used.
local price, gain, brim = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local seq, begin, ttl = tonumber(ARGV[5]), ARGV[6] == '1', tonumber(ARGV[7])
local charged, seen, wish = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[11])
local need, want = tonumber(ARGV[12]), tonumber(ARGV[13])

-- What a double holds exactly, with room for a sum.
local MOST = 2251799813685248

local function int(number) return string.format('%.0f', number) end

local state = redis.call('HMGET', KEYS[1], 'level', 'at', 'token', 'price')
local level, at, token = tonumber(state[1] or 0), tonumber(state[2] or 0), tonumber(state[3] or 0)
local time = redis.call('TIME')
local now = math.max(at, time[1] * 1000000 + time[2])
-- Compared first, since the product of a long time may be more than a double holds exactly.
if now - at >= math.ceil(level / gain) then level = 0 else level = level - (now - at) * gain end
-- Another quota has another price: what was taken stays taken, in whole tokens.
if state[4] and tonumber(state[4]) ~= price then level = math.min(math.ceil(level / tonumber(state[4])) * price, MOST) end
local function free() return math.max(math.floor((brim - level) / price), 0) end

local last = redis.call('HMGET', KEYS[2], 'seq', 'charged', 'asked', 'units', 'token', 'due')
local answer = { '0', '', int(math.floor(brim / price)), '0' }
if ARGV[10] == '1' then
    redis.call('DEL', KEYS[2])
elseif last[1] or begin then
    answer[1] = '1'
    local asked, units, fence = tonumber(last[3] or 0), tonumber(last[4] or 0), tonumber(last[5] or 0)
    local due = tonumber(last[6] or 0)
    if seq > tonumber(last[1] or 0) then
        local debt = math.max(charged - tonumber(last[2] or 0), 0)
        if debt > 0 then level = math.min(level + debt * price, MOST) end
        if wish > asked then
            local all = math.max(math.min(math.max(want, need), math.floor(brim / price)), need)
            if need <= free() then
                units, due = math.min(math.max(want, need), free()), now
            elseif ARGV[14] == '1' and need * price <= brim and level + all * price <= MOST then
                units, due = all, now + math.ceil(math.max(level + all * price - brim, 0) / gain)
            else
                due = nil
            end
            if due then
                level = level + units * price
                token = math.max(token + 1, now)
                asked, fence = wish, token
            elseif need * price <= brim then
                answer[2] = int(math.ceil((level + need * price - brim) / gain))
            end
        end
        redis.call('HSET', KEYS[2], 'seq', int(seq), 'charged', int(charged), 'asked', int(asked), 'units', int(units),
            'token', int(fence), 'due', int(due or 0))
        redis.call('PEXPIRE', KEYS[2], math.ceil(ttl / 1000))
    end
    if fence > seen then
        if due and due > now then answer[2] = int(due - now) end
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

-- A token bucket that many machines share, in whole numbers. Carries out one sync.
--
-- The level is the sum of taken tokens that have not come back, in parts of a token: a token adds `price`, a microsecond takes off
-- `gain`. That is GCRA with the theoretical arrival time now + level / gain, without rounding.
--
-- KEYS, with one hash tag: 1 hash: kind, level, at, token, price, gain, and ahead: how much later `at` is than the clock, which may be
--   set back; brim; and, once the rule was changed, edition; 2 hash: the last grant of this session, so that a repeated sync takes
--   nothing twice; 3 the clock: the latest token of all limiters. 1 is gone while the bucket is full.
-- ARGV: price, gain, brim, then the sync: session, seq, begin, ttl, charged, seen, end, request, need, want,
--   queue: whether the tokens may be granted for later; the edition of the rule above, and its new rule, or three times "".
-- A new rule counts unless another one has come since that edition.
-- Answers: alive, microseconds or "", burst, taken, edition or "", price, gain, brim, number of waiters, whether another session uses
--   another rule, then the grant, if there is one: request, units, token. The microseconds say when to ask again, or when the grant may
--   be used. An edition is reported if it is later than the given one.
local price, gain, brim = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local asked_edition, REMEMBERED = tonumber(ARGV[15]), tonumber(ARGV[19])
local seq, begin, ttl = tonumber(ARGV[5]), ARGV[6] == '1', tonumber(ARGV[7])
local charged, seen, wish = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[11])
local need, want = tonumber(ARGV[12]), tonumber(ARGV[13])

-- The largest exact whole number of a double, with a margin for a sum.
local MOST = 2251799813685248
-- For how many milliseconds the clock's key stays after its last token has passed: a week.
local UNUSED = 604800000
local CLOCK = KEYS[3]

local function int(number) return string.format('%.0f', number) end

local state = redis.call('HMGET', KEYS[1], 'level', 'at', 'token', 'price', 'ahead', 'edition', 'gain', 'brim', 'kind')
if state[9] and state[9] ~= 'rate' then return redis.error_reply('KIND ' .. KEYS[1] .. ' is another kind of limiter') end
local level, at, token = tonumber(state[1] or 0), tonumber(state[2] or 0), tonumber(state[3] or 0)
-- A session outlives a bucket that was full meanwhile, and its next token has to be greater than those that it has seen.
if not state[9] then
    token = tonumber(redis.call('GET', CLOCK) or 0)
    at = token
end
local time = redis.call('TIME')
time = time[1] * 1000000 + time[2]
-- The server's clock may be set back; ours goes on from where it was.
local ahead = math.max(tonumber(state[5] or 0), at - time)
local now = time + ahead
local edition, differs = tonumber(state[6] or 0), false
-- What outlives the keys of a limiter: the latest token of all limiters that share the clock's key.
local function note_token()
    if token <= tonumber(redis.call('GET', CLOCK) or 0) then return end
    redis.call('SET', CLOCK, int(token), 'PX', int(math.ceil(math.max(token - time, 0) / 1000) + UNUSED))
end
-- Another quota has another price: taken tokens stay taken.
local function adopt(old, new_price, new_gain, new_brim)
    if old ~= new_price then
        local whole = math.floor(level / old)
        local rest = (level - whole * old) * new_price
        local parts = math.floor(rest / old)
        if rest >= 2 * MOST then
            parts = parts + 2
        elseif parts * old < rest then
            parts = parts + 1
        end
        level = math.min(whole * new_price + math.min(parts, new_price), MOST)
    end
    price, gain, brim = new_price, new_gain, new_brim
end
local function advance(by)
    -- Compared first, since the product of a long time may exceed the exact numbers of a double.
    if now - at >= math.ceil(level / by) then level = 0 else level = level - (now - at) * by end
end
-- Time up to now has passed by the latest caller's quota.
advance(tonumber(state[7] or gain))
if edition > asked_edition then
    adopt(tonumber(state[4]), tonumber(state[4]), tonumber(state[7]), tonumber(state[8]))
else
    local function other(known, given) return known and tonumber(known) ~= given end
    differs = edition == 0 and (other(state[4], price) or other(state[7], gain) or other(state[8], brim))
    adopt(tonumber(state[4] or price), price, gain, brim)
    edition = asked_edition
end
local function free() return math.max(math.floor((brim - level) / price), 0) end

local last = redis.call('HMGET', KEYS[2], 'seq', 'charged', 'asked', 'units', 'token', 'due')
local answer = { '0', '', '', '', '', '', '', '', '0', differs and '1' or '0' }
if ARGV[10] == '1' then
    redis.call('DEL', KEYS[2])
elseif last[1] or begin then
    answer[1] = '1'
    local asked, units, fence = tonumber(last[3] or 0), tonumber(last[4] or 0), tonumber(last[5] or 0)
    local due = tonumber(last[6] or 0)
    if seq > tonumber(last[1] or 0) then
        local debt = math.max(charged - tonumber(last[2] or 0), 0)
        if debt > 0 then level = math.min(level + debt * price, MOST) end
        if ARGV[16] ~= '' and edition == asked_edition then
            adopt(price, tonumber(ARGV[16]), tonumber(ARGV[17]), tonumber(ARGV[18]))
            edition = math.max(edition + 1, now)
        end
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
                note_token()
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
local burst = math.floor(brim / price)
answer[3], answer[4] = int(burst), int(burst - math.min(free(), burst))
if edition > asked_edition then
    answer[5], answer[6], answer[7], answer[8] = int(edition), int(price), int(gain), int(brim)
end
if level > 0 or edition > 0 then
    redis.call('HSET', KEYS[1], 'kind', 'rate', 'level', int(level), 'at', int(now), 'token', int(token), 'price', int(price), 'gain', int(gain),
        'brim', int(brim), 'ahead', int(ahead))
    -- Once it is full again nothing is lost with it, except a changed rule.
    local left = math.ceil(level / gain / 1000) + 1
    if edition > 0 then
        redis.call('HSET', KEYS[1], 'edition', int(edition))
        left = math.max(left, REMEMBERED)
    end
    redis.call('PEXPIRE', KEYS[1], left)
else
    redis.call('DEL', KEYS[1])
end
return answer

-- Checks the rights that the other scripts need: a missing one is an error here, and not in the middle of a sync. Answers with the server's
-- eviction policy.
--
-- KEYS: 1 a name unique to this process; nothing is left there. ARGV: a channel.
local key, missing = KEYS[1], nil
for _, command in ipairs({
    { 'TIME' }, { 'INFO', 'server' }, { 'PUBLISH', ARGV[1], '' },
    { 'SET', key, '1', 'XX' }, { 'GET', key },
    { 'HSET', key, 'field', '1' }, { 'PEXPIRE', key, 1000 }, { 'HGET', key, 'field' }, { 'HMGET', key, 'field' },
    { 'HGETALL', key }, { 'HDEL', key, 'field' }, { 'DEL', key },
    { 'ZADD', key, '1', 'member' }, { 'PEXPIRE', key, 1000 }, { 'ZCARD', key }, { 'ZSCORE', key, 'member' },
    { 'ZRANGE', key, 0, 0 }, { 'ZRANGEBYSCORE', key, '-inf', '+inf', 'LIMIT', 0, 1 }, { 'ZREM', key, 'member' },
    { 'DEL', key },
}) do
    local answer = redis.pcall(unpack(command))
    if type(answer) == 'table' and answer.err and not missing then
        missing = redis.error_reply(answer.err .. ' (' .. string.lower(command[1]) .. ')')
    end
end
return missing or string.match(redis.call('INFO', 'memory'), 'maxmemory_policy:([%w-]+)') or 'unknown'

-- The commands that the scripts use and this user may not run.
-- KEYS: a hash
-- Answers those that change nothing, the others, and how many others there are.
-- Invariant: changes nothing: the hash is of another type, or the arguments are invalid.

local function refused(commands)
  local found, n = {}, 0
  for line in string.gmatch(commands, '[^;]+') do
    local words = {}
    for word in string.gmatch(line, '%S+') do words[#words + 1] = word == '@' and KEYS[1] or word end
    local answer = redis.pcall(unpack(words))
    n = n + 1
    local said = type(answer) == 'table' and answer.err or ''
    for _, no in ipairs({ 'NOPERM', 'no permissions', "script can't run" }) do -- 7.2, 7.0, 6.2
      if string.find(said, no, 1, true) then
        found[#found + 1] = string.lower(words[1])
        break
      end
    end
  end
  return found, n
end

local reads = refused('HGET @ -;HMGET @ -;HGETALL @;HLEN @;HEXISTS @ -;HSTRLEN @ -;LLEN @;EXISTS @;XLEN @;XRANGE @ - +;' ..
  'XINFO GROUPS @;XPENDING @ -;ZCARD @;ZCOUNT @ 0 0;ZSCORE @ -;ZRANGE @ 0 0;ZRANGEBYLEX @ - +;' ..
  'ZRANGEBYSCORE @ 0 0')
local writes, n = refused('HSET @ - - -;HDEL @ -;HINCRBY @ - -;RPUSH @ -;XADD @ * - -;' ..
  'XACK @ - 0-1;XDEL @ 0-1;XTRIM @ MAXLEN 1;XGROUP CREATE @ - 0;' ..
  'XREADGROUP GROUP - - STREAMS @ >;ZADD @ 0 -;ZREM @ -')
return { reads, writes, n }

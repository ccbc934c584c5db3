-- How leases end: what settle.lua and finish.lua share.

-- A leased message leaves its stream, the deadlines, its batch and its call.
local function let_go(row, id)
  local stream = key('a' .. row.flag)
  if row.state == 'F' then stream = lane_of(row.part, row.lane) end
  call('XACK', stream, GROUP, row.entry .. '-0')
  call('XDEL', stream, row.entry .. '-0')
  call('ZREM', key('d' .. row.flag), row.seq .. id)
  local name = call_of(row.token)
  local at, batch, owner = string.match(call('HGET', key('k'), name) or '0  ', '^(%d+) (%S*) (.*)$')
  if batch ~= '' then
    call('ZREM', key('b' .. row.flag), batch .. ' ' .. id .. ' ' .. row.token)
  end
  if call('HINCRBY', key('kn'), name, -1) <= 0 then
    call('HDEL', key('k'), name)
    call('HDEL', key('kn'), name)
  end
  return at, owner
end

-- The time of the next entry of the log, which never goes back, and the number before its first.
local function next_in_log(flag, now, n)
  local last = tonumber(call('HGET', KEYS[1], 'logms' .. flag) or 0)
  if last < now then
    last = now
    call('HSET', KEYS[1], 'logms' .. flag, num(now))
  end
  return num(last), call('HINCRBY', KEYS[1], 'logn' .. flag, n) - n
end

-- Answers for a move that does not fit: this very one was applied before, or it is stale.
local function lost(flag, id, token, verb, state)
  if token == '' then return 's' end
  if state then
    local row = read(state)
    return row.state == 'W' and row.token == token and row.verb == verb and 'r' or 's'
  end
  if call('HEXISTS', key('m'), id) == 1 then return 's' end
  local entry = call('HGET', key('li' .. flag), id)
  local logged = entry and call('XRANGE', key('log' .. flag), entry, entry)[1]
  if not logged then return 's' end
  local seq, was, rest = string.match(logged[2][2], '^%d+ (%S+) %S+ %S+ %S+ %S+ %S+ (%S+) (%S+) ')
  return was == verb and seq .. rest == token and 'r' or 's'
end

-- The log holds under a message's id the length of a line on it, the line, and its body; then "r", its
-- result, and "h", its history, if it has any. The line, after the seq: attempts available first leased status verb, the token
-- after its seq, owner.
local function log_line(row, status, verb, rest, leased, owner)
  return table.concat({
    '', row.attempts, row.available or '-', row.first or leased, leased, status, verb,
    rest == '' and '-' or rest, owner,
  }, ' ')
end

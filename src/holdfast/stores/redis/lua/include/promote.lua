local PROMOTE = 500 -- delayed messages that one script makes ready

-- Delayed messages whose time has come go to their place in line; how many there were.
local function promote(flag, now)
  local due = call('ZRANGEBYSCORE', key('z' .. flag), '-inf', now, 'LIMIT', 0, PROMOTE)
  if #due == 0 then return 0 end
  local ids = {}
  for i = 1, #due do ids[i] = string.sub(due[i], 16) end
  local rows, parts = hmget('x', ids), {}
  for i = 1, #due do
    rows[i] = read(rows[i], ids[i])
    parts[rows[i].part] = (parts[rows[i].part] or 0) + 1
  end
  for part in pairs(parts) do call('ZCARD', key('r' .. flag .. '.' .. part)) end
  call('ZREM', key('z' .. flag), unpack(due))
  for part, n in pairs(parts) do call('HINCRBY', KEYS[1], 'late' .. flag .. '.' .. part, -n) end
  for i = 1, #due do
    local row = rows[i]
    call('ZADD', key('r' .. flag .. '.' .. row.part), score(row.lane, row.place), ids[i])
  end
  return #due
end

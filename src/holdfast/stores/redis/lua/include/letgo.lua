-- A leased message leaves its stream, the deadlines, its batch and its call.
local function let_go(row, id)
  local stream = key('a' .. row.flag)
  if row.state == 'F' then stream = lane_of(row.part, row.lane) end
  call('XACK', stream, GROUP, row.entry .. '-0')
  call('XDEL', stream, row.entry .. '-0')
  if row.state == 'L' then call('HINCRBY', KEYS[1], 'again' .. row.flag .. '.' .. row.part, -1) end
  call('ZREM', key('d' .. row.flag), row.token)
  local name = call_of(row.token)
  local at, batch, owner = string.match(call('HGET', key('k'), name) or '0  ', '^(%d+) (%S*) (.*)$')
  if not at then at, batch, owner = '0', '', '' end -- somebody else wrote it
  if batch ~= '' then
    call('ZREM', key('b' .. row.flag), batch .. ' ' .. id .. ' ' .. row.token)
  end
  if call('HINCRBY', key('kn'), name, -1) <= 0 then
    call('HDEL', key('k'), name)
    call('HDEL', key('kn'), name)
  end
  return at, owner
end

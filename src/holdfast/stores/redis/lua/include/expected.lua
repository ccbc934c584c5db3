-- Finding a message where a move expects it, and taking it away from there. Needs rows, line, calls.

-- The row of a message that was never leased and still waits at this very place of its lane; else nil.
local function untouched(lanes, id, place)
  local body = call('HGET', key('m'), id)
  if not body then return nil end
  local part, lane = string.match(body, '^(%d+)%.(%d+)%.')
  local stream, entry = lane_of(part, lane), place .. '-0'
  if not string.find(lanes or '', ' ' .. part .. '.' .. lane .. ' ', 1, true) then return nil end
  local found = call('XRANGE', stream, entry, entry)[1]
  local last = string.match(progress(stream), '^%d+')
  if not found or found[2][2] ~= id or tonumber(last) >= tonumber(place) then return nil end
  return {
    state = 'S', flag = '0', part = part, lane = lane, seq = place, place = place,
    attempts = '0', first = '-', timeout = found[2][4] or '-', entry = place, token = '-', verb = '-',
    available = string.match(body, '^%d+%.%d+%.(%d+)'),
  }
end

-- The row of a message that is leased with this token (and overdue, if that is asked for) or, without a
-- token, waits at this place; else nil. And what x says of it. `lanes` are those in use.
local function expected(lanes, id, token, flag, overdue, place)
  local state, row = call('HGET', key('x'), id), nil
  if state then row = read(state, id) elseif token == '' then row = untouched(lanes, id, place) end
  local fits = row and row.flag == flag
  if fits and token == '' then
    fits = (row.state == 'W' or row.state == 'S') and row.place == place
  elseif fits then
    fits = (row.state == 'F' or row.state == 'L') and row.token == token
    if fits and overdue ~= '' then
      fits = tonumber(call('ZSCORE', key('d' .. flag), token)) <= tonumber(overdue)
    end
  end
  return fits and row or nil, state
end

-- Take a message away from where its row says it is; when it was leased, and by which owner.
local function leave(row, id)
  if row.state == 'S' then
    call('XDEL', lane_of(row.part, row.lane), row.entry .. '-0')
    return '-', ''
  elseif row.state == 'W' then
    call('ZREM', key('r' .. row.flag .. '.' .. row.part), id)
    if call('ZREM', key('z' .. row.flag), row.seq .. id) == 1 then
      call('HINCRBY', KEYS[1], 'late' .. row.flag .. '.' .. row.part, -1)
    end
    return '-', ''
  end
  local stream, entry = key('a' .. row.flag), row.entry .. '-0'
  if row.state == 'F' then
    stream = lane_of(row.part, row.lane)
    row.timeout = call('XRANGE', stream, entry, entry)[1][2][4] or '-'
  end
  call('XACK', stream, GROUP, entry)
  call('XDEL', stream, entry)
  if row.state == 'L' then call('HINCRBY', KEYS[1], 'again' .. row.flag .. '.' .. row.part, -1) end
  call('ZREM', key('d' .. row.flag), row.token)
  local name = call_of(row.token)
  local at, batch, owner = call_told(name)
  if batch ~= '' then
    call('ZREM', key('b' .. row.flag), batch .. ' ' .. id .. ' ' .. row.token)
  end
  released(name, 1)
  row.first = row.first or at
  return at, owner
end

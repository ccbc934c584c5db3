-- A message that waits in its lane as it was enqueued, at this very place; else nil.
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

-- Where a message is, if that is where a move expects it: leased with this token, or waiting at this
-- place; else nil. And what x says of it. `lanes` are those in use.
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

-- A message leaves where it is; answers when it was leased, and by whom.
local function leave(row, id)
  if row.state == 'S' then
    call('XDEL', lane_of(row.part, row.lane), row.entry .. '-0')
  elseif row.state == 'W' then
    call('ZREM', key('r' .. row.flag .. '.' .. row.part), id)
    if call('ZREM', key('z' .. row.flag), row.seq .. id) == 1 then
      call('HINCRBY', KEYS[1], 'late' .. row.flag .. '.' .. row.part, -1)
    end
  else
    if row.state == 'F' then
      local entry = row.entry .. '-0'
      row.timeout = call('XRANGE', lane_of(row.part, row.lane), entry, entry)[1][2][4] or '-'
    end
    local leased, owner = let_go(row, id)
    row.first = row.first or leased
    return leased, owner
  end
  return '-', ''
end

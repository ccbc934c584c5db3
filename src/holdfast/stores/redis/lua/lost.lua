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
  local body = ''
  for i = 1, #logged[2], 2 do
    if logged[2][i] == id then body = logged[2][i + 1] end
  end
  local seq, was, rest = string.match(body, '^%d+ %d+ %d+ (%S+) %S+ %S+ %S+ %S+ %S+ (%S+) (%S+) ')
  return seq and was == verb and seq .. id .. rest == token and 'r' or 's'
end

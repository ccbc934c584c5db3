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
  return was == verb and seq .. id .. rest == token and 'r' or 's'
end

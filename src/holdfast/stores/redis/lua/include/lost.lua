-- Answers for a move that does not fit: this very one was applied before, or it is stale.
local function lost(flag, id, token, verb, state)
  if token == '' then return 's' end
  if state then
    local row = read(state, id)
    return row.state == 'W' and row.token == token and row.verb == verb and 'r' or 's'
  end
  if call('HEXISTS', key('m'), id) == 1 then
    if call('ZSCORE', key('d' .. flag), token) then read(nil, id) end -- it is leased: the note is gone
    return 's'
  end
  for entry in string.gmatch(call('HGET', key('li' .. flag), id) or '', '%S+') do
    local logged = call('XRANGE', key('log' .. flag), entry, entry)[1]
    for i = 1, logged and #logged[2] or 0, 2 do
      if logged[2][i] == id then
        local seq, was, rest =
          string.match(logged[2][i + 1], '^%d+ %d+ %d+ (%S+) %S+ %S+ %S+ %S+ %S+ (%S+) (%S+) ')
        if seq and was == verb and seq .. id .. rest == token then return 'r' end
      end
    end
  end
  return 's'
end

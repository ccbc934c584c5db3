-- What a lease call noted (see lease.lua): when it was, its batch, its owner.
local function call_told(name)
  local at, batch, owner = string.match(name and call('HGET', key('k'), name) or '', '^(%d+) (%S*) (.*)$')
  return at or '0', batch or '', owner or '' -- none: it was not written by Holdfast
end

-- A lease call holds so many messages less; its note goes with the last one.
local function released(name, n)
  if call('HINCRBY', key('kn'), name, -n) <= 0 then
    call('HDEL', key('k'), name)
    call('HDEL', key('kn'), name)
  end
end

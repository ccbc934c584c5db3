local BYTES = 4194304 -- of bodies that one script carries; the caller asks for the rest

-- Bodies as far as BYTES go, read so many at a time.
local function bodies(ids, step)
  if #ids <= step then return hmget('m', ids) end
  local found, size = {}, 0
  for i = 1, #ids, step do
    local some = call('HMGET', key('m'), unpack(ids, i, math.min(i + step - 1, #ids)))
    for j = 1, #some do
      found[i + j - 1] = some[j]
      size = size + (some[j] and #some[j] or 0)
    end
    if size > BYTES then break end
  end
  return found
end

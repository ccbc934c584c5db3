-- The lanes in use of a home, and of each the partitions: only the home itself has streams.
local function lanes_of(flag, lanes, wanted)
  local used = {}
  if flag == '0' then
    for part, lane in string.gmatch(lanes or '', '(%d+)%.(%d+)') do
      if wanted == nil or wanted[part] then
        used[lane] = used[lane] or {}
        table.insert(used[lane], part)
      end
    end
  end
  return used
end

-- Up to where a lane has been leased, and how much of it is leased now.
local function progress(stream)
  for _, group in ipairs(call('XINFO', 'GROUPS', stream)) do
    if group[2] == GROUP then return group[8], group[6] end
  end
  error('NOGROUP ' .. stream)
end

-- What waits in one lane after a place, in order: {place, id, part, entry or nil, own time-out}.
local function line(flag, lane, parts, streams, after, limit)
  local found = {}
  for _, part in ipairs(parts) do
    local low, high = '(' .. score(lane, after), '(' .. score(lane - 1, 0)
    if after < 0 then low = score(lane, 0) end
    local name = key('r' .. flag .. '.' .. part)
    local back = call('ZRANGEBYSCORE', name, low, high, 'WITHSCORES', 'LIMIT', 0, limit)
    for i = 1, #back, 2 do
      found[#found + 1] = { back[i + 1] - (9 - lane) * LANE, back[i], part }
    end
  end
  for _, part in ipairs(streams or {}) do
    local stream = lane_of(part, lane)
    local last = progress(stream)
    if after >= 0 and tonumber(string.match(last, '^%d+')) < after then last = num(after) .. '-0' end
    for _, entry in ipairs(call('XRANGE', stream, '(' .. last, '+', 'COUNT', limit)) do
      local n = string.sub(entry[1], 1, 15)
      found[#found + 1] = { tonumber(n), entry[2][2], part, n, entry[2][4] }
    end
  end
  if #parts > 1 or (streams and #streams > 0) then
    table.sort(found, function(a, b) return a[1] < b[1] end)
  end
  for i = #found, limit + 1, -1 do found[i] = nil end
  return found
end

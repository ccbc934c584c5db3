-- What each partition of a queue holds: how much is ready, delayed and leased, and when the oldest at the
-- head of one of its lanes was enqueued. Lanes are counted by their lengths. What is delayed, or leased
-- again, shares a key with that of other partitions: late<q>.<part> and again<q>.<part> in c count it.
-- KEYS: c m x, of the queue z a and all r and s.
-- ARGV: queue, partitions, now
--#include common
--#include rows
--#include promote
--#include line

local flag, now = ARGV[1], tonumber(ARGV[3])
local known = call('HMGET', KEYS[1], 'rev' .. flag, 'parts', 'lanes')
if not known[1] then return { 'gone' } end
if known[2] ~= ARGV[2] then return { 'parts', known[2] } end
if promote(flag, now) == PROMOTE then return { 'more' } end
local parts, lanes = {}, lanes_of(flag, known[3])
for part = 0, known[2] - 1 do parts[#parts + 1] = num(part) end

local function counted(kind, total)
  local names, sum = {}, 0
  for i, part in ipairs(parts) do names[i] = kind .. flag .. '.' .. part end
  local counts = call('HMGET', KEYS[1], unpack(names))
  for i = 1, #parts do
    counts[i] = tonumber(counts[i] or 0)
    sum = sum + counts[i]
  end
  if #parts == 1 then return { total } end
  return sum == total and counts or nil
end

-- Once, for what was there before anybody counted.
local function recounted(kind, ids_after)
  local counts, ids, last = {}, ids_after(nil)
  for i = 1, #parts do counts[i] = 0 end
  while #ids > 0 do
    for i, state in ipairs(hmget('x', ids)) do
      local at = read(state, ids[i]).part + 1
      counts[at] = (counts[at] or 0) + 1
    end
    ids, last = ids_after(last)
  end
  for i, part in ipairs(parts) do
    call('HDEL', KEYS[1], kind .. flag .. '.' .. part)
    call('HSET', KEYS[1], kind .. flag .. '.' .. part, num(counts[i]))
  end
  return counts
end

local STEP = 500
local late = counted('late', call('ZCARD', key('z' .. flag)))
  or recounted('late', function(last)
    local from, ids = last or 0, {}
    for i, member in ipairs(call('ZRANGE', key('z' .. flag), from, from + STEP - 1)) do
      ids[i] = string.sub(member, 16)
    end
    return ids, from + STEP
  end)
local again = counted('again', call('XLEN', key('a' .. flag)))
  or recounted('again', function(last)
    local ids = {}
    for i, entry in ipairs(call('XRANGE', key('a' .. flag), last or '-', '+', 'COUNT', STEP)) do
      ids[i], last = entry[2][2], '(' .. entry[1]
    end
    return ids, last
  end)

local rows, of = {}, {}
for i, part in ipairs(parts) do
  local back, heads = call('ZCARD', key('r' .. flag .. '.' .. part)), {}
  rows[i] = { back, late[i], again[i], '' }
  of[part] = { row = rows[i], heads = heads }
  for lane = 0, back > 0 and 9 or -1 do
    heads[num(lane)] = line(flag, lane, { part }, nil, -1, 1)[1]
  end
end
for lane, some in pairs(lanes) do
  for _, part in ipairs(some) do
    local stream, row, heads = lane_of(part, lane), of[part].row, of[part].heads
    local last, pending = progress(stream)
    local n = call('XLEN', stream) - pending
    row[1], row[3] = row[1] + n, row[3] + pending
    local first = n > 0 and call('XRANGE', stream, '(' .. last, '+', 'COUNT', 1)[1]
    local place = first and tonumber(string.sub(first[1], 1, 15))
    if place and not (heads[lane] and heads[lane][1] < place) then heads[lane] = { place, first[2][2] } end
  end
end
for _, part in pairs(of) do
  local ids, oldest = {}, nil
  for _, head in pairs(part.heads) do ids[#ids + 1] = head[2] end
  for _, body in ipairs(hmget('m', ids)) do
    local at = tonumber(string.match(body or '', '^[%d.]*%.(%d+)|'))
    if at and at < (oldest or at + 1) then oldest = at end
  end
  if oldest then part.row[4] = num(oldest) end
end
return { 'ok', rows }

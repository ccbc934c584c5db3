-- What a queue holds, for each partition and in all, at a cost that does not grow with its messages. Lanes
-- are counted by their lengths. What is delayed, or leased again, shares a key with that of other
-- partitions: late<q>.<part> and again<q>.<part> in c count it. A message on its way to another home counts
-- as leased in all, and in no partition.
-- KEYS: all of the home.
-- ARGV: queue, partitions, now, 1 for what is delayed and leased of each partition, else 0
-- Answers: for each partition ready, delayed, leased and when the oldest at the head of one of its lanes was
-- enqueued; then paused, delayed, leased, dead, done, and how many of the delayed are due.
-- Invariant: changes nothing but that due messages take their place in line; 'more' asks for another call,
-- as only what stands in line is counted by partition.
--#include common
--#include queue
--#include rows
--#include promote
--#include line

local now, each = tonumber(ARGV[3]), ARGV[4] == '1'
if promote(flag, now) == PROMOTE and each then return { 'more' } end
local parts, lanes = {}, lanes_of(flag, known[3])
for part = 0, known[2] - 1 do parts[#parts + 1] = num(part) end

-- The counts of c, unless their sum shows that they are wrong.
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

-- Needed once, for messages of a version that did not count. `ids_after` reads them page by page.
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

local STEP, late, again = 500, {}, {}
if each then
  late = counted('late', call('ZCARD', key('z' .. flag))) or recounted('late', function(last)
    local from, ids = last or 0, {}
    for i, member in ipairs(call('ZRANGE', key('z' .. flag), from, from + STEP - 1)) do
      ids[i] = string.sub(member, 16)
    end
    return ids, from + STEP
  end)
  again = counted('again', call('XLEN', key('a' .. flag))) or recounted('again', function(last)
    local ids = {}
    for i, entry in ipairs(call('XRANGE', key('a' .. flag), last or '-', '+', 'COUNT', STEP)) do
      ids[i], last = entry[2][2], '(' .. entry[1]
    end
    return ids, last
  end)
end

local rows, of = {}, {}
for i, part in ipairs(parts) do
  local back, heads = call('ZCARD', key('r' .. flag .. '.' .. part)), {}
  rows[i] = { back, late[i] or 0, again[i] or 0, '' }
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

local told = call('HMGET', KEYS[1], 'moving' .. flag, 'moving1', 'done' .. flag)
local dead, due = 0, call('ZCOUNT', key('z' .. flag), '-inf', num(now))
if flag == '0' then
  dead = call('ZCARD', key('z1')) + call('ZCARD', key('d1')) + (told[2] or 0)
  for _, part in ipairs(parts) do dead = dead + call('ZCARD', key('r1.' .. part)) end
end
return { 'ok', rows, known[4] == '1' and 1 or 0, call('ZCARD', key('z' .. flag)),
  call('ZCARD', key('d' .. flag)) + (told[1] or 0), dead, told[3] or '0', due }

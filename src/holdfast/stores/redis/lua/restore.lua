-- Write rows of a log that finished elsewhere, in the order in which they did.
-- KEYS: c, of the queue log and li
-- ARGV: queue, partitions (of no meaning), then of each: id, when, the rest of its line after the seq (see
--       logging.lua), its result, its history, its body
-- Answers how many were new; late and the time of the last row if the log has newer ones.
-- Invariant: a row that the log holds stays as it is, and none is written before another: a stream only
-- grows at its end.
--#include common
--#include logging

local flag, WIDTH = ARGV[1], 6
if not call('HGET', KEYS[1], 'rev' .. flag) then return { 'gone' } end
local li, ids, new = key('li' .. flag), {}, {}
for at = 3, #ARGV, WIDTH do ids[#ids + 1] = ARGV[at] end
local known, here = {}, {}
call('XLEN', key('log' .. flag))
local last = tonumber(call('HGET', KEYS[1], 'logms' .. flag) or 0)
for i, there in ipairs(hmget('li' .. flag, ids)) do
  local at = 3 + (i - 1) * WIDTH
  local id, row = ids[i], ids[i] .. ' ' .. ARGV[at + 1]
  known[id] = there or known[id]
  if not here[row] and not string.find(' ' .. (there or ''), ' ' .. ARGV[at + 1] .. '-', 1, true) then
    here[row] = true
    if tonumber(ARGV[at + 1]) < last then return { 'late', num(last) } end
    last = tonumber(ARGV[at + 1])
    new[#new + 1] = at
  end
end
if #new == 0 then return { 'ok', 0 } end

local seq = call('HINCRBY', KEYS[1], 'seq', #new) - #new
call('HINCRBY', KEYS[1], 'done' .. flag, #new)
local function write(entry, rows, places)
  call('XADD', key('log' .. flag), entry, unpack(rows))
  call('HSET', li, unpack(places))
end
local when, entry, rows, places = nil, nil, nil, nil
for i, at in ipairs(new) do
  local id, ms, tail, result, history, body = unpack(ARGV, at, at + WIDTH - 1)
  if ms ~= when then
    if when then write(entry, rows, places) end
    local _, n = next_in_log(flag, tonumber(ms), 1)
    when, entry, rows, places = ms, ms .. '-' .. num(n + 1), {}, {}
  end
  local line = num(seq + i) .. tail
  rows[#rows + 1], places[#places + 1] = id, id
  rows[#rows + 1] = #line .. ' ' .. #result .. ' ' .. #history .. ' ' .. line .. result .. history .. body
  known[id] = with_entry(flag, known[id], entry)
  places[#places + 1] = known[id]
end
write(entry, rows, places)
return { 'ok', #new }

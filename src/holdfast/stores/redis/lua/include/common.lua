-- The beginning of every script on a home: a queue and its dead-letter queue, which share a slot.
-- KEYS[1] is c, the home's hash of settings and counters; the other keys are named after it. A script
-- touches only keys among its KEYS (a test watches). Queue 0 is the home, queue 1 its dead letters.
--
-- A script reads and compares first and writes last, so one that fails has written nothing. Its first write
-- is one that a server out of memory still accepts, except in enqueue.lua, which is then refused whole.
--
-- Redis takes almost a microsecond to make a function, at every run. Functions that are rarely needed are
-- therefore included where they are used.

local call = redis.call
local base = string.sub(KEYS[1], 1, -2)
local GROUP = 'holdfast'
local LANE = 2 ^ 48 -- in the score of a returned message, room for the places of one lane

local function key(name) return base .. name end
local function num(n) return string.format('%.0f', n) end
local function lane_of(part, lane) return base .. 's' .. part .. '.' .. lane end

-- HMGET of nothing is an error; more than 7,999 fields are too many for Lua's stack.
local function hmget(name, fields)
  if #fields == 0 then return {} end
  return call('HMGET', key(name), unpack(fields))
end

local function score(lane, place) return num((9 - lane) * LANE + place) end

-- The list has one element at most: the waiter that takes it looks, and puts it back if it leaves messages.
local function wake(flag)
  local name = key('w' .. flag)
  if call('LLEN', name) == 0 then call('RPUSH', name, '1') end
end

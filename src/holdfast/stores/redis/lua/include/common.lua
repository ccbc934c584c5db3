-- The beginning of every script on a home: a queue and its dead-letter queue, which share a slot.
-- KEYS[1] is the home's hash of settings and counters. Its other keys are named after it; each one
-- that a script touches is among its KEYS (a test watches). Queue 0 is the home, 1 its dead letters.
--
-- A script reads and compares first and writes last. Its first write is one that a server out of
-- memory still takes, but for enqueue, which is then refused whole.
--
-- "--#include name" puts another file there. To make a function takes Redis nearly a microsecond, every
-- time that a script runs: those that are seldom needed are made where they are.

local call = redis.call
local base = string.sub(KEYS[1], 1, -2)
local GROUP = 'holdfast'
local LANE = 2 ^ 48 -- in the score of a returned message, room for the places of one lane

local function key(name) return base .. name end
local function num(n) return string.format('%.0f', n) end
local function lane_of(part, lane) return base .. 's' .. part .. '.' .. lane end

-- HMGET of none is an error, and of many too long a list for Lua's stack.
local function hmget(name, fields)
  if #fields == 0 then return {} end
  return call('HMGET', key(name), unpack(fields))
end

local function score(lane, place) return num((9 - lane) * LANE + place) end

-- One element at most: whoever takes it looks, and passes it on if it leaves something behind.
local function wake(flag)
  local name = key('w' .. flag)
  if call('LLEN', name) == 0 then call('RPUSH', name, '1') end
end

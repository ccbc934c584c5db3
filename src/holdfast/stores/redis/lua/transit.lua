-- What a move has under way: ids, x, e, and as many bodies as fit.
-- KEYS: c m x e. ARGV: move, how many bodies to read at a time, ids
--#include common
--#include rows
--#include bodies

local ids, states, found, of = {}, {}, {}, {}
for i = 3, #ARGV do ids[i - 2] = ARGV[i] end
for i, state in ipairs(hmget('x', ids)) do
  local row = state and read(state, ids[i])
  if row and row.state == 'T' and row.entry == ARGV[1] then
    found[#found + 1], of[#of + 1] = ids[i], state
  end
end
return { found, of, hmget('e', found), bodies(found, tonumber(ARGV[2])) }

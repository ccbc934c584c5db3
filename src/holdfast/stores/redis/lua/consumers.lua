-- Forget consumers that hold nothing and have not been seen for a while.
-- KEYS: c and streams
-- ARGV: idle for at least so many ms
-- Answers how many.
-- Invariant: one that holds a message stays. No read would ever return the messages that it holds.
--#include common

local n = 0
for i = 2, #KEYS do
  if call('EXISTS', KEYS[i]) == 1 then
    for _, consumer in ipairs(call('XINFO', 'CONSUMERS', KEYS[i], GROUP)) do
      if consumer[4] == 0 and consumer[6] > tonumber(ARGV[1]) then
        call('XGROUP', 'DELCONSUMER', KEYS[i], GROUP, consumer[2])
        n = n + 1
      end
    end
  end
end
return n

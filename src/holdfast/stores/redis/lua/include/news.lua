-- Something came back, or can be leased again: waiters for single partitions look (see waiting.py).
local function news(flag)
  local number = num(call('HINCRBY', key('c'), 'seq', 1))
  call('XADD', key('v' .. flag), 'MAXLEN', '1', number .. '-0', 'n', '1')
end

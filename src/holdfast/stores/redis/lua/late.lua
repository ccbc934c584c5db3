-- Which of several queues have overdue leases, by their number among KEYS. Changes nothing.
-- KEYS: of each queue d. ARGV: now
local late = {}
for n, name in ipairs(KEYS) do
  if redis.call('ZCOUNT', name, '-inf', ARGV[1]) > 0 then late[#late + 1] = n end
end
return late

-- The queue ARGV[1]. The script ends here if it does not exist, or if its home does not have the number of
-- partitions that the caller knows of (ARGV[2]), which then did not name all keys.
local flag = ARGV[1]
local known = call('HMGET', KEYS[1], 'rev' .. flag, 'parts', 'lanes', 'paused' .. flag, 'seq')
if not known[1] then return { 'gone' } end
if known[2] ~= ARGV[2] then return { 'parts', known[2] } end

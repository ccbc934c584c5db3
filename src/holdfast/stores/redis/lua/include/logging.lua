-- The time of the next entry of the log, which never goes back, and the number before its first.
local function next_in_log(flag, now, n)
  local last = tonumber(call('HGET', KEYS[1], 'logms' .. flag) or 0)
  if last < now then
    last = now
    call('HSET', KEYS[1], 'logms' .. flag, num(now))
  end
  return num(last), call('HINCRBY', KEYS[1], 'logn' .. flag, n) - n
end

-- An entry of the log is what one call finished: under each id the lengths of a line on it, of its result
-- and of its history, then these three and its body. A row is there as long as li says that it is: it has
-- the entries of an id, the oldest first, with a space between. Most ids finish once; `more` in the
-- home's hash counts the other rows.
-- The line: seq, attempts, available, first, leased, status, verb, the token after its id, owner.
local function log_line(row, status, verb, rest, leased, owner)
  return table.concat({
    '', row.attempts, row.available or '-', row.first or leased, leased, status, verb,
    rest == '' and '-' or rest, owner,
  }, ' ')
end

-- What li says of an id, with one more entry.
local function with_entry(flag, known, entry)
  if not known then return entry end
  call('HINCRBY', KEYS[1], 'more' .. flag, 1)
  return known .. ' ' .. entry
end

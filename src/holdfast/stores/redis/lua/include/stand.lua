-- A waiting message (see rows.lua) takes its place in line, or waits there until it is available.
local function stand(row, id, now)
  call('HSET', key('x'), id, written(row))
  if tonumber(row.available) > now then
    call('ZADD', key('z' .. row.flag), row.available, row.seq .. id)
    call('HINCRBY', key('c'), 'late' .. row.flag .. '.' .. row.part, 1)
  else
    call('ZADD', key('r' .. row.flag .. '.' .. row.part), score(row.lane, row.place), id)
  end
end

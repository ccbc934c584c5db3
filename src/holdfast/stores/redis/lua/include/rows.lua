-- Where a message is that does not lie in its lane as it was enqueued. Hash x:
--   <token>                                    leased for the first time, from its lane
--   L|W|T flag part lane seq place attempts available first timeout entry token verb
--                                              leased again, waiting in z or r, or on its way to
--                                              another home: then its entry names the move
-- A token is the seq (15 digits, as numbers begin at 10^14: so text sorts as they do), the id (36
-- characters), and ".part.lane.call". Of a waiting one it is that of its last lease, with the verb that
-- ended it. "-" stands for none.
local ROW = '^([LWT]) ([01]) (%d+) (%d) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%S+) (%S+) (%S+)$'

-- What x says of an id. Where that is damaged: nil if `lenient`, else an error that names the id, before the
-- caller has written anything; mending.py then looks for the message, and runs the script again.
local function read(text, id, lenient)
  local row = {}
  text = text or ''
  if string.find(text, '^%d') then
    local part, lane = string.match(text, '^%.(%d+)%.(%d)%.[^ ]+$', 52)
    row = {
      state = lane and 'F', flag = '0', part = part, lane = lane, seq = string.sub(text, 1, 15),
      attempts = '1', available = nil, token = text, verb = '-',
    }
    row.place, row.entry = row.seq, row.seq
  else
    row.state, row.flag, row.part, row.lane, row.seq, row.place, row.attempts, row.available,
      row.first, row.timeout, row.entry, row.token, row.verb = string.match(text, ROW)
  end
  local sound = row.state and not string.find(text, '[%c\128-\255]') and #row.part < 6
    and #row.seq == 15 and #row.place == 15 and #row.attempts < 10 and #(row.available or '') < 16
    and (row.state == 'F' or (string.find(row.first, '^[%d-]%d*$') and string.find(row.timeout, '^[%d-]%d*$')
      and #row.first < 16 and #row.timeout < 16))
  if sound and (row.state == 'F' or row.state == 'L') then
    sound = string.sub(row.token, 1, 15) == row.seq and string.sub(row.token, 16, 51) == id
      and string.find(row.entry, '^%d+$')
  end
  if sound then return row end
  if lenient then return nil end
  local hex = string.gsub(id, '.', function(c) return string.format('%02x', string.byte(c)) end)
  error('MISPLACED ' .. hex .. ': what is noted of a message was not written by Holdfast')
end

local function written(row)
  return table.concat({
    row.state, row.flag, row.part, row.lane, row.seq, row.place, row.attempts, row.available,
    row.first, row.timeout, row.entry, row.token, row.verb,
  }, ' ')
end

local function call_of(token) return string.match(token, '^%.%d+%.%d+%.(.*)$', 52) end

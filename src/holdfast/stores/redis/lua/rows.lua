-- Where a message is that does not lie in its lane as it was enqueued. Hash x:
--   <token>                                    leased for the first time, from its lane
--   L|W|T flag part lane seq place attempts available first timeout entry token verb
--                                              leased again, waiting in z or r, or on its way to
--                                              another home: then its entry names the move
-- A token is the seq (15 digits, as numbers begin at 10^14: so text sorts as they do), the id (36
-- characters), and ".part.lane.call". Of a waiting one it is that of its last lease, with the verb that
-- ended it. "-" stands for none.
local ROW = '^([LWT]) (%d) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%S+) (%S+) (%S+)$'

local function strange() error('what is noted of a message was not written by Holdfast') end

local function read(text)
  if not text then strange() end
  if string.find(text, '^%d') then
    local seq, part, lane = string.sub(text, 1, 15), string.match(text, '^%.(%d+)%.(%d+)%.', 52)
    if not lane then strange() end
    return {
      state = 'F', flag = '0', part = part, lane = lane, seq = seq, place = seq,
      attempts = '1', entry = seq, token = text, verb = '-',
    }
  end
  local row = {}
  row.state, row.flag, row.part, row.lane, row.seq, row.place, row.attempts, row.available,
    row.first, row.timeout, row.entry, row.token, row.verb = string.match(text, ROW)
  if not row.state then strange() end
  return row
end

local function written(row)
  return table.concat({
    row.state, row.flag, row.part, row.lane, row.seq, row.place, row.attempts, row.available,
    row.first, row.timeout, row.entry, row.token, row.verb,
  }, ' ')
end

local function call_of(token) return string.match(token, '^%.%d+%.%d+%.(.*)$', 52) end

--- Append one event to a stream that keeps about the newest `most`.
local function emit(stream, most, ...)
  return redis.call('XADD', stream, 'MAXLEN', '~', most, '*', ...)
end

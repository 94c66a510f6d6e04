-- What wrk runs: send the requests of `rows` in turn, and print one line of JSON at the end.
local requests, at = {}, 0

function init()
  for number, row in ipairs(rows) do
    requests[number] = wrk.format(row[1], row[2], row[3], row[4])
  end
end

function request()
  at = at % #requests + 1
  return requests[at]
end

function done(summary, latency)
  local failed = summary.errors
  print(string.format(
    '{"requests":%d,"errors":%d,"seconds":%.6f,"p50_ms":%.4f,"p99_ms":%.4f}',
    summary.requests, failed.connect + failed.read + failed.write + failed.status + failed.timeout,
    summary.duration / 1e6, latency:percentile(50) / 1000, latency:percentile(99) / 1000))
end

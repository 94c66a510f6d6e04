--- Write a whole number with all its digits (tostring and .. keep only 14).
local function text_of(number)
  return string.format('%.0f', number)
end

# cmake -DSOURCE=... -DOUTPUT=... -P GitRevision.cmake: writes the revision as a header, and touches the
# file only when it changes. Outside of a git checkout the revision is empty.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12
  OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
set(text "inline constexpr char kGitRevision[] = \"${revision}\";\n")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT "${old}" STREQUAL "${text}")
  file(WRITE ${OUTPUT} "${text}")
endif()
